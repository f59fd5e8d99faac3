"""What Slurm tells a job before it ends it, and what the job makes of it.

SIGUSR1   time is nearly over (`#SBATCH --signal=B:USR1@60`, or scancel --signal=USR1): save, requeue, end
SIGTERM   preempted, cancelled or out of time: save and end; if it is to go on, Slurm requeues it by itself
"""

import signal
import subprocess

REQUEUE = signal.SIGUSR1
NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGUSR1: "SIGUSR1"}
STATUS = {signal.SIGTERM: 143, signal.SIGUSR1: 75}  # exit status: 128 + the signal's number; EX_TEMPFAIL of sysexits.h


received = 0  # the first signal that this rank got


def listen():
    """From now on remember a signal instead of dying of it. It imports nothing: torch takes seconds to import."""
    for number in NAMES:
        signal.signal(number, remember)


def remember(number, _):
    # USR1 comes first and says more: the TERM that may follow at the time limit does not take its place.
    global received
    received = received or number


class Interruption:
    """Learns of a signal on any rank, on every rank after the same step, so that all save the same step."""

    def ask(self):
        """Begin to tell the others what was received; it goes on while the step computes."""
        import torch
        import torch.distributed as dist

        self.flag = torch.tensor([received])
        self.work = dist.all_reduce(self.flag, dist.ReduceOp.MAX, async_op=True)

    def answer(self):
        """The signal that some rank had received when it asked, the same on every rank; 0 for none."""
        self.work.wait()
        return self.flag.item()


def requeue(job_id):
    """Ask Slurm to run the job again, from the start of its script. Returns what went wrong, or nothing."""
    if not job_id:
        return "there is no Slurm job to requeue: start it again with --resume auto"
    command = ["scontrol", "requeue", job_id]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{' '.join(command)}` failed: {error}"
    return f"`{' '.join(command)}` failed: {done.stderr.strip()}" if done.returncode else ""
