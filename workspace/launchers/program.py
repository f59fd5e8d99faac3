"""For launchers that have Python start the ranks: tell a process which rank it is, and run a program in it."""

import os
import runpy
import sys
from pathlib import Path

DEFAULT = "launchers/distributed_sum.py"


class ProgramFailed(Exception):
    """The program ended with another status than 0."""


def be_rank(rank, world_size, local_rank, local_world_size, address):
    """Set the variables that torchrun would set; what Slurm set in this process is of the launcher, not of the rank."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port()),
    )


def port():
    """A port of the job's own, below 32768, where outgoing connections begin; as in jobs/launch.sh."""
    return 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000


def run(arguments):
    """`python3 ARGUMENTS...`, in this process. ProgramFailed if it ends with another status than 0.

    Not SystemExit: launchers take that for an orderly end, or lose its text.
    """
    arguments = arguments or [DEFAULT]
    path, *_ = sys.argv[:] = arguments
    sys.path.insert(0, str(Path(path).resolve().parent))  # as python3 does; runpy does not
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ProgramFailed(f"{' '.join(arguments)} ended with {end.code}") from None
