"""Ranks on one node by torch.multiprocessing: one for each GPU that Slurm gave, or RANKS_PER_NODE.

python3 launchers/spawn_ranks.py train.py --parallel ddp, in a job; launchers/multiprocessing.sbatch submits it.
"""

import os
import sys

import program
from torch import multiprocessing


def rank(number, world_size, arguments):
    # 127.0.0.1 is right here, and only here: all ranks are on this node. On two nodes, each would be a separate world.
    program.be_rank(number, world_size, number, world_size, "127.0.0.1")
    program.run(arguments)


def main():
    if os.environ["SLURM_NNODES"] != "1":
        sys.exit(f"spawn starts ranks on its own node only, and this job has {os.environ['SLURM_NNODES']}: --nodes=1")
    ranks = int(os.environ.get("RANKS_PER_NODE") or os.environ.get("SLURM_GPUS_ON_NODE") or 1)
    # Not fork: a forked process cannot use CUDA, nor threads that torch has started. Spawned ones import this file
    # anew: hence the line with __name__ below, and what they get must pickle.
    # If a rank fails, spawn ends the others (SIGTERM, after 30 s SIGKILL), and raises with the failed one's traceback.
    multiprocessing.spawn(rank, (ranks, sys.argv[1:]), nprocs=ranks)


if __name__ == "__main__":
    main()
