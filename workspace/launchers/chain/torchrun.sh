#!/bin/bash
# Runs on each node, started by run_script.sh: torchrun with a fixed place for this node.
set -Eeuo pipefail

# The node's place in the list of the job's nodes. It differs from node to node, so it is computed here: run_script.sh
# runs on the first node only, and would give every node the number 0. (Slurm's own SLURM_NODEID is the same number. A
# container has no scontrol, and takes that.)
NODE_RANK=$SLURM_NODEID
if command -v scontrol >/dev/null; then
  NODE_RANK=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk -v me="$SLURMD_NODENAME" '$0 == me { print NR - 1 }')
fi
echo "$SLURMD_NODENAME is node $NODE_RANK of $SLURM_JOB_NUM_NODES, rank 0 is on $MASTER_ADDR:$MASTER_PORT"
# --master-addr and --node-rank make the rendezvous static. A torchrun that finds too few nodes gives up after a minute.
exec torchrun --nnodes="$SLURM_JOB_NUM_NODES" --node-rank="$NODE_RANK" \
  --nproc-per-node="${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --rdzv-conf=timeout=60 "$@"
