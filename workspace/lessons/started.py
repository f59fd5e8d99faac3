"""Who started this process, and as what? What torchrun says beside what Slurm says. Nobody talks to anybody.

lessons/follow lessons/torchrun.sbatch -m lessons.started
"""

import os
import socket


def main():
    def told(*names):
        return " of ".join(os.environ.get(name, "?") for name in names)

    line = (
        f"RANK {told('RANK', 'WORLD_SIZE')}   LOCAL_RANK {told('LOCAL_RANK', 'LOCAL_WORLD_SIZE')}   "
        f"SLURM_PROCID {told('SLURM_PROCID', 'SLURM_NTASKS')}   on {socket.gethostname()}\n"
    )
    os.write(1, line.encode())  # in one write: the ranks share one log


if __name__ == "__main__":
    main()
