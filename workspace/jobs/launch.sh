# What all job scripts begin with: `source jobs/launch.sh`, in the folder of submission. Not a job by itself.
# Sets MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS, and defines `launch`, which starts the ranks.
set -Eeuo pipefail

# Slurm runs a copy of the job script in a spool folder: $0 does not lead back to train.py, the folder of submission does.
if [[ ! -f train.py ]]; then
  echo "no train.py in $PWD: submit from its folder, as sbatch jobs/$SLURM_JOB_NAME.sbatch" >&2
  exit 1
fi

# Rank 0 runs on the first node of the allocation, and everyone meets there. Not $(hostname), which behind srun would be
# each rank's own, and no fallback to localhost, which would make each rank a world of one.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# A port of the job's own, so that two jobs on a node do not collide; below 32768, where outgoing connections begin.
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Without it every rank starts a thread for each core that it sees, which may be all of the machine's.
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS

# --kill-on-bad-exit: if a rank dies the others end too, instead of waiting for it.
# --cpus-per-task: since Slurm 22.05 srun does not take it over from sbatch.
# exec: a signal to the job reaches srun, which passes it on to every rank.
launch() {
  exec srun --kill-on-bad-exit=1 --cpus-per-task="$OMP_NUM_THREADS" "$@"
}
