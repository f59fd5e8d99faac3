"""Lesson 1: what Slurm tells each process about itself. One line from each; nobody talks to anybody.

srun --nodes=2 --ntasks-per-node=2 python3 -m lessons.who | sort
"""

import os
import socket

if "SLURM_PROCID" not in os.environ:
    print("no rank: Slurm did not start this process")
else:
    rank, world_size, local_rank = (os.environ[f"SLURM_{name}"] for name in ("PROCID", "NTASKS", "LOCALID"))
    by = "srun" if "SLURM_STEP_ID" in os.environ else "the batch script alone"
    print(f"rank {rank} of {world_size}   local rank {local_rank} on {socket.gethostname()}   started by {by}")
