"""Before a cluster stops: its jobs get SIGTERM, save what they have, and are requeued."""

from collections import Counter
from collections.abc import Callable, Sequence

from slurmbed.errors import SlurmbedError, WaitTimeout
from slurmbed.process import Result
from slurmbed.wait import Pending, wait_until

AsRoot = Callable[[Sequence[str]], Result]
PATIENCE = 180  # seconds; Slurm ends what is left of a job KillWait seconds after its SIGTERM
TIMES = 3  # requests; a job that still runs after them cannot be requeued: srun, salloc, --no-requeue
ON_NODES = "configuring,completing,running,signaling,stage_out,stopped,suspended"


def say_goodbye(as_root: AsRoot, say: Callable[[str], None]) -> None:
    """Requeue all jobs on nodes, and cancel those that cannot be requeued; wait until they have left their nodes.

    A job's processes get SIGTERM, and KillWait seconds later SIGKILL. No job starts meanwhile: partitions are down
    until slurmctld starts again. If it does not answer, a message says so, and the jobs are left alone.
    """
    try:
        if not tokens(as_root, "squeue", "--all", "--noheader", "--format=%i"):
            return
        partitions = tokens(as_root, "sinfo", "--all", "--noheader", "--format=%R %a")
        is_up = [name for name, state in zip(partitions[::2], partitions[1::2], strict=True) if state == "up"]
        try:
            set_partitions(as_root, is_up, "DOWN")
            clear_nodes(as_root, say)
        except BaseException:
            set_partitions(as_root, is_up, "UP")
            raise
    except SlurmbedError as error:
        say(f"could not requeue the jobs before the stop: {error}")


def clear_nodes(as_root: AsRoot, say: Callable[[str], None]) -> None:
    asked: Counter[str] = Counter()

    def check() -> None:
        listed = tokens(as_root, "squeue", "--all", "--noheader", f"--states={ON_NODES}", "--format=%i %T")
        jobs = dict(zip(listed[::2], listed[1::2], strict=True))
        # A heterogeneous job as a whole: 7 for 7+0 and 7+1.
        running = {job.partition("+")[0] for job, state in jobs.items() if state != "COMPLETING"}
        if again := sorted(job for job in running if asked[job] < TIMES):
            # Incomplete: without it, a job that has ended since it was listed would run once more.
            as_root(["timeout", "30", "scontrol", "requeue", "Incomplete", ",".join(again)])
        if never := sorted(running.difference(again)):
            as_root(["timeout", "30", "scancel", *never])
        asked.update(again)
        if jobs:
            raise Pending(", ".join(f"{job} {state}" for job, state in jobs.items()))

    say("jobs save what they have, and are requeued")
    try:
        wait_until(check, what="jobs leave their nodes", timeout=PATIENCE, interval=0.5)
    except WaitTimeout as late:
        say(f"stopping the cluster although jobs still run: {late}")
    # Slurm delays requeued jobs for minutes, in case their nodes are still ending them.
    if asked:
        as_root(["timeout", "30", "scontrol", "update", f"JobId={','.join(asked)}", "StartTime=now"])


def set_partitions(as_root: AsRoot, names: Sequence[str], state: str) -> None:
    for name in names:
        as_root(["timeout", "30", "scontrol", "update", f"PartitionName={name}", f"State={state}"]).check()


def tokens(as_root: AsRoot, *argv: str) -> list[str]:
    """The tokens that a command of Slurm prints; CommandError if it fails."""
    return as_root(["timeout", "30", *argv]).check().stdout.split()
