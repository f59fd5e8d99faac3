#!/bin/bash
# The chain that people use: this job sources env.sh, and srun starts torchrun.sh on each node, which starts the program.
# Submit it from the folder of train.py; each node writes to a separate file, log/JOB/NODE.out:
#
#     sbatch launchers/chain/run_script.sh train.py --parallel ddp --steps 20
#
# With IMAGE=FILE.sqsh, which `enroot import` writes, torchrun.sh runs in a container on each node: enroot.sh.

#SBATCH --job-name=chain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=00:10:00
#SBATCH --no-requeue
# The output of the batch script; the nodes write to log/.
#SBATCH --output=runs/%j.log

set -Eeuo pipefail
# Slurm runs a copy of this script in a spool folder: the others lie beside the original, not beside $0.
cd "$SLURM_SUBMIT_DIR"
source launchers/chain/env.sh

# The same on all nodes, so it is computed here, once. Rank 0 is on the first node of the list.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

# srun makes the files, but not their folder. %N is the node's name.
mkdir -p "log/$SLURM_JOB_ID"
script=torchrun.sh
if [[ ${IMAGE:-} ]]; then script=enroot.sh; fi
exec srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --output="log/$SLURM_JOB_ID/%N.out" \
  bash "launchers/chain/$script" "${@:-launchers/distributed_sum.py}"
