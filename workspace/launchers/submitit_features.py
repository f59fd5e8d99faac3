"""What submitit has beside starting ranks: job arrays, exceptions that come back, going on after preemption.

python3 launchers/submitit_features.py array       # one job of four tasks, two at a time, each with its own result
python3 launchers/submitit_features.py exception   # the job's traceback, here on the login node
python3 launchers/submitit_features.py preempt     # saved on a signal, requeued, gone on with, and the result is right
python3 launchers/submitit_features.py preempt --qos preemptible   # the same, when Slurm preempts it for another job
"""

import argparse
import os
import sys
import time

from submitit.helpers import Checkpointable, DelayedSubmission
from submitit_job import executor, finish

STEPS = 60
STARTED = "started at step"


class SumOfSquares(Checkpointable):
    """The squares of 0 to steps - 1, added slowly. Pickled with all it holds, so that it can go on elsewhere."""

    def __init__(self, steps):
        self.steps = steps
        # One tuple, replaced at once: checkpoint() is called between any two lines, and must not find the step counted
        # but its square not yet added.
        self.progress = 0, 0  # step, total

    def __call__(self):
        started = self.progress[0]
        print(STARTED, started, flush=True)
        while self.progress[0] < self.steps:
            step, total = self.progress
            self.progress = step + 1, total + step**2
            time.sleep(0.5)  # the work: long enough for a signal to find it undone
        return {"started": started, "total": self.progress[1], "restarts": os.environ.get("SLURM_RESTART_COUNT", "0")}

    def checkpoint(self):
        """submitit calls it in task 0 on SIGUSR2, and has Slurm requeue the job to run what this returns."""
        return DelayedSubmission(self)


def square(number):
    return number**2


def divide(number, by):
    return number / by


def array(wait, _):
    jobs = executor(slurm_array_parallelism=2).map_array(square, [1, 2, 3, 4])
    print(f"submitted job {jobs[0].job_id.partition('_')[0]}", flush=True)
    for job in jobs:
        finish(job, wait)
    print("results:", [job.result() for job in jobs])


def exception(wait, _):
    job = executor().submit(divide, 1, by=0)
    print(f"submitted job {job.job_id}", flush=True)
    finish(job, wait)
    # job.result() would raise it. It is a FailedJobError, whatever the job raised, with its traceback as text.
    print("exception:", job.exception())


def preempt(wait, qos):
    # Slurm sends SIGUSR2 90 s (slurm_signal_delay_s) before the time limit. On preemption too, if slurm.conf has
    # PreemptParameters=send_user_signal and the job's QOS a GraceTime to save in, as clusters/campus.yaml says.
    # slurm_max_num_timeout is how often a job may go on after its time limit. With a limit of 10 minutes or less
    # submitit takes every preemption for that.
    slurm = executor(slurm_additional_parameters={"requeue": True, **({"qos": qos} if qos else {})})
    job = slurm.submit(SumOfSquares(STEPS))
    print(f"submitted job {job.job_id}", flush=True)
    deadline = time.monotonic() + wait
    while STARTED not in (job.stdout() or ""):  # before it handles the signal, it would die of it
        if job.done() or time.monotonic() > deadline:
            sys.exit(f"job {job.job_id} is {job.state} and did not start: {job.stderr()}")
        time.sleep(1)
    if not qos:
        time.sleep(2)  # some steps to lose; if there were none, `started` below is 0 and says so
        job._interrupt()  # like preemption: SIGTERM, which submitit leaves aside, then SIGUSR2
    finish(job, wait)
    result, expected = job.result(), sum(step**2 for step in range(STEPS))
    print("result:", result)
    if result["total"] != expected or not result["started"] or result["restarts"] == "0":
        sys.exit(f"submitit_features.py: error: not gone on with, or not right: {expected} is right")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    features = {each.__name__: each for each in (array, exception, preempt)}
    parser.add_argument("feature", choices=features)
    parser.add_argument("--qos", help="preempt: of the job, which then waits for Slurm to preempt it")
    parser.add_argument("--wait", type=int, default=600, help="seconds for the job; requeued ones wait two minutes")
    options = parser.parse_args()
    features[options.feature](options.wait, options.qos)


if __name__ == "__main__":
    main()
