"""What the job runs: each rank says who and where it is."""

import os
import socket

if __name__ == "__main__":
    print(f"rank {os.environ['SLURM_PROCID']} of {os.environ['SLURM_NTASKS']} on {socket.gethostname()}")
