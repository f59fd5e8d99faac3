# Every job script begins with `source jobs/launch.sh`, in the folder of submission: Slurm runs a copy of the job script
# in a spool folder, so that $0 does not name this folder. This file is not a job script.
# Sets an earlier run aside, sets what the ranks need of the environment, and defines `launch`, which starts them.
set -Eeuo pipefail

# An earlier job with this id may have left a folder and a log, which are not to be mixed with this job's.
python3 run/earlier.py

# Rank 0 runs on the first node of the allocation, and all ranks connect to it. Not $(hostname), which srun's tasks would
# each expand to their own node, and no fallback to localhost, with which each rank would be a world of one.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# A different port for each job, so that two jobs on a node do not collide; below 32768, where outgoing connections begin.
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Without it every rank starts a thread for each core that it sees, which may be all cores of the machine.
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# Under `sbatch --export=NONE`, some sites' default, srun would keep all this from the ranks.
SLURM_EXPORT_ENV=ALL
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS SLURM_EXPORT_ENV

# IMAGE=... sbatch jobs/ddp.sbatch: the ranks run in a container of that image on each node, which sees this folder, by
# the options that NVIDIA's pyxis gives srun.
in_container=()
if [[ ${IMAGE:-} ]]; then
  in_container=(--container-image="$IMAGE" --container-mounts="$PWD:$PWD" --container-workdir="$PWD")
fi

# --kill-on-bad-exit: if a rank dies the others end too, instead of waiting for it.
# --wait=0: rank 0 writes its sample after the others have ended; a site may have set that srun ends it soon after.
# --cpus-per-task: since Slurm 22.05 srun does not take it over from sbatch.
# exec: a signal to the job reaches srun, which passes it on to every rank.
launch() {
  exec srun --kill-on-bad-exit=1 --wait=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${in_container[@]}" "$@"
}

# For launchers that start a node's ranks themselves: as many as Slurm gave GPUs, or RANKS_PER_NODE. The task's CPUs are
# for all of them; where there are fewer than ranks these take turns.
share_out_node() {
  if [[ ${SLURM_GPUS:-} ]] && ((${SLURM_GPUS##*:} != SLURM_NNODES * SLURM_GPUS_ON_NODE)); then
    echo "$SLURM_GPUS GPUs on $SLURM_NNODES nodes, $SLURM_GPUS_ON_NODE of them here: ask for as many on each, --gpus-per-node" >&2
    exit 1
  fi
  RANKS_PER_NODE=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
  OMP_NUM_THREADS=$((OMP_NUM_THREADS > RANKS_PER_NODE ? OMP_NUM_THREADS / RANKS_PER_NODE : 1))
  export RANKS_PER_NODE
}

# As share_out_node, where Slurm's tasks are the launchers: a second one on a node would wait for ranks that never come.
one_launcher_per_node() {
  if [[ ${SLURM_NTASKS:-$SLURM_NNODES} != "$SLURM_NNODES" ]]; then
    echo "$SLURM_NTASKS tasks on $SLURM_NNODES nodes, but the launcher is one on each: for more ranks set RANKS_PER_NODE" >&2
    exit 1
  fi
  share_out_node
}
