"""The name that everything of one run of the tests begins with on the engine, and the sign that the run is alive.

A run holds a lock on the file of its name. .ci/run looks at it before it removes what other runs have left.
"""

import atexit
import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from slurmbed.process import INHERITED

SLURM = "SLURMBED_TEST_SLURM"  # the version of Slurm that clusters of tests have, if it is not the default
FLAVOR = "SLURMBED_TEST_FLAVOR"  # the flavor of their node image
VARIABLE = "SLURMBED_TEST_RUN"  # tells a run's name to the processes that it starts
FOLDER = Path("/tmp")  # not $TMPDIR: all users of an engine have to meet
NAME = re.compile("slurmbed-test-[0-9a-f]{4}")


def chosen() -> dict[str, str | None]:
    """The settings that all clusters of tests have; None is the default."""
    return {"slurm": os.environ.get(SLURM), "flavor": os.environ.get(FLAVOR)}


def name() -> str:
    """This run's name, like slurmbed-test-3fa9: from the environment, or a new one, which is then there."""
    given = os.environ.get(VARIABLE, "")
    if not NAME.fullmatch(given):
        given = os.environ[VARIABLE] = claim()
    return given


def claim() -> str:
    """A name that no other run on this machine has.

    Its lock is held by this process and by those that ``slurmbed.process.run`` starts: it is free when all have ended,
    however they ended.
    """
    while True:
        chosen = f"slurmbed-test-{secrets.token_hex(2)}"
        file = FOLDER / f"{chosen}.lock"
        with suppress(FileExistsError):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not file.exists():  # .ci/run has removed it in between, for nobody held it yet
                continue
            INHERITED.add(descriptor)
            atexit.register(forget, file, os.getpid())
            return chosen


def forget(file: Path, owner: int) -> None:
    """Remove the file, and those of its clusters' locks, at the end of the process that made it.

    A process forked from it ends here too.
    """
    if os.getpid() == owner:
        for each in (file, *FOLDER.glob(f"slurmbed-*-{file.stem}*.lock")):
            each.unlink(missing_ok=True)
