# Runs Ray on a node until it is told to stop: the head node on the job's first node, worker nodes on the others.
# launchers/ray.sbatch starts it; it is not a job script.
set -Eeuo pipefail
told=
trap 'told=yes' TERM # it comes to all of this task; Ray is the one to act on it, and then ends with 1

export RANK_OUTPUT=/proc/$$/fd/1 # what srun reads
folder=/tmp/ray-$SLURM_JOB_ID # the job's own: in /tmp/ray the last one's Ray is everyone's default
rm -rf "$folder" # of an earlier run of this job, which a lost node has cut off
mkdir --mode=700 "$folder" # fails where somebody else has made it
# This node's ranks take one slurm_node_I each, so that exactly so many come here, whatever Ray finds better.
# --block: what Ray starts in the background outlives the job where Slurm has no cgroups.
options=(
  --block --temp-dir="$folder" --object-store-memory=100000000 --num-cpus="$RANKS_PER_NODE"
  --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --resources="{\"slurm_node_$SLURM_NODEID\": $RANKS_PER_NODE}"
  --min-worker-port=0 --max-worker-port=0 # any that is free: Ray's own range has the ports of RAY_ADDRESS in it
)
if ((SLURM_NODEID == 0)); then
  ray start --head --port="${RAY_ADDRESS#*:}" --include-dashboard=false "${options[@]}" && code=0 || code=$?
else
  until (exec 3<>"/dev/tcp/${RAY_ADDRESS/://}") 2>/dev/null; do
    if [[ -n $told ]]; then exit; fi
    if ((SECONDS > 60)); then
      echo "$(hostname): no head of Ray at $RAY_ADDRESS within 60 s" >&2
      exit 1
    fi
    sleep 0.5
  done
  ray start --address="$RAY_ADDRESS" "${options[@]}" && code=0 || code=$?
fi
rm -rf "$folder"
[[ -n $told ]] || exit "$code"
