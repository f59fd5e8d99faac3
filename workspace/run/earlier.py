"""Set aside what an earlier job with this job's id left: its folder runs/ID, and its log runs/ID.log.

    python3 run/earlier.py

jobs/launch.sh does so before a job prints anything. Job ids begin at 1 again on a new cluster. The earlier run is kept
as runs/ID-earlier-1 and runs/ID-earlier-1.log; if these names are taken, with the next number.
"""

import os
import shutil
from itertools import count
from pathlib import Path


def set_aside(folder, output=None):
    """Rename `folder` and the log beside it, FOLDER.log, if they exist, to the same new name.

    If the log is open as `output`, it is copied and emptied instead. It must have been opened to append, as `#SBATCH
    --open-mode=append` does; otherwise Slurm has emptied it before.

    Args:
        output: the job's standard output, a file descriptor, before the job has printed anything. Without it the log
            stays: it may be the job's own.
    """
    log = folder.with_name(f"{folder.name}.log")
    has_log = output is not None and log.exists() and log.stat().st_size > 0
    if not has_log and not folder.exists():
        return
    names = (f"{folder.name}-earlier-{number}" for number in count(1))
    name = next(each for each in names if not any(folder.with_name(each + end).exists() for end in ("", ".log")))
    if folder.exists():
        folder.rename(folder.with_name(name))
    if has_log and os.path.samestat(log.stat(), os.fstat(output)):
        shutil.copyfile(log, log.with_name(f"{name}.log"))
        os.truncate(log, 0)
    elif has_log:
        log.rename(log.with_name(f"{name}.log"))


def main():
    # A job that was queued again goes on in its own folder and log.
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        set_aside(Path("runs") / os.environ["SLURM_JOB_ID"], output=1)


if __name__ == "__main__":
    main()
