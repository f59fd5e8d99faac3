"""hydra's submitit launcher starts the ranks: a job for each configuration of a sweep. On the login node:

python3 launchers/hydra_submitit.py                            # conf/hydra_submitit.yaml as it is: one job
python3 launchers/hydra_submitit.py seconds=0,2 ranks=2        # two jobs, as one array
python3 launchers/hydra_submitit.py 'program="train.py --parallel ddp --steps 20"' nodes=4

from the folder of train.py. Ends when the jobs do, with their output.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import cloudpickle
import hydra
import submitit_job

WAIT = 900  # seconds for all jobs, their time in the queue included

# Python 3.14 reads each option's help when the option is added; one of hydra 1.3's is no text yet, and is refused.
argparse.ArgumentParser._check_help = lambda parser, action: None
cloudpickle.register_pickle_by_value(submitit_job)  # a node's Python does not find modules of this folder


@hydra.main(version_base=None, config_path="conf", config_name="hydra_submitit")
def main(config):
    """Runs in every rank of every job."""
    try:
        submitit_job.rank(shlex.split(config.program))
    except Exception:
        # hydra would make a result of the exception and the rank end with 0, while the others wait for it.
        traceback.print_exc()
        sys.exit(1)


def launch():
    """Have hydra submit the jobs and wait for them, but not for ever; then show their output."""
    folder = Path(f"runs/hydra/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")  # shared by all nodes
    sys.argv.append(f"hydra.sweep.dir={folder}")

    def jobs():
        return sorted(path.parent.name for path in folder.glob(".submitit/*/*_submitted.pkl"))

    def too_late(*_):
        subprocess.run(["scancel", *jobs()], check=False, timeout=60)
        raise TimeoutError(f"the jobs {jobs()} were not over after {WAIT} s, and are cancelled")

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(WAIT)
    try:
        main()
    finally:
        for job in jobs():
            print(f"submitted job {job}")  # only now: the plugin says nothing before the job's end
            for log in sorted((folder / ".submitit" / job).glob("*_log.*")):
                print(log.read_text(), end="")


if __name__ == "__main__":
    launch()
