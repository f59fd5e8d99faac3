#!/bin/bash
# Runs on each node, started by run_script.sh when IMAGE names a squashfs file: makes a container of it, which is this
# node's own, and starts torchrun.sh in it.
set -Eeuo pipefail

# In the home folder, which all nodes share, the second node would find that the container exists already.
export ENROOT_DATA_PATH=/tmp/enroot-$SLURM_JOB_ID
trap 'enroot remove --force chain && rmdir "$ENROOT_DATA_PATH"' EXIT
enroot create --name chain "$IMAGE"

# A container gets the image's variables, and those that are named.
options=()
while read -r name; do
  case $name in
    SLURM* | MASTER_* | RANKS_PER_NODE | CUDA_* | GLOO_* | NCCL_* | OMP_* | PYTHON*) options+=(--env "$name") ;;
  esac
done < <(compgen -e)
enroot start --rw --mount "$PWD:$PWD" "${options[@]}" chain env --chdir="$PWD" bash launchers/chain/torchrun.sh "$@"
