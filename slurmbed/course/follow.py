"""Submit a job, follow it to its end with its progress on the screen, and ask what to do with it after Ctrl-C."""

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import runs
from slurmbed.course.runs import Run
from slurmbed.errors import UsageError
from slurmbed.project import command
from slurmbed.slurm.client import Slurm, failure
from slurmbed.slurm.records import Job
from slurmbed.wait import Pending, wait_until

POLL = 0.5  # seconds between two looks at what a job has written
LOOK = 2  # seconds that one command waits for a change of the job's state, before its first step and after its last
ASK = 3.0  # seconds between two questions to Slurm about a job between its first and its last step
LONGEST = 6 * 3600  # seconds; the job's own time limit ends it earlier
Describe = Callable[[list[dict]], tuple[str, str]]
"""From the lines of metrics.jsonl: the run's progress, and text to print on a separate line, or "" for none."""


def nothing(metrics: list[dict]) -> tuple[str, str]:
    """For a job that writes no metrics.jsonl."""
    return "", ""


def require_exclusive_workspace(cluster: Cluster) -> None:
    """UsageError if another cluster writes its runs to the same workspace: jobs of both could have the same id."""
    workspace = cluster.workspace()
    if others := cluster.snapshot.writers_to(workspace):
        raise UsageError(
            f"the cluster {others[0]} writes its runs to {workspace} too",
            f"give one of them a copy: cp -r workspace other, "
            f"then {command('up', name=cluster.name, workspace='other')}",
        )


def complete(
    cluster: Cluster, console: Console, arguments: list[str], describe: Describe = nothing
) -> tuple[Run, dict[int, str]]:
    """Submit ``sbatch ARGUMENTS`` and follow the job to its end.

    Returns:
        The job's files, and the node of each of its tasks.

    Raises:
        JobFailed: with state, exit code and last log lines.
    """
    since = runs.now()
    job_id = cluster.slurm.submit(*arguments)
    job_run = Run(cluster.workspace(), job_id, since)
    console.print(f"submitted job {job_id}: sbatch {' '.join(arguments)}")
    try:
        job, layout = follow(cluster.slurm, job_run, console, describe)
    except KeyboardInterrupt:
        leave_or_cancel(cluster.slurm, job_id, console)
        raise
    if job.state != "COMPLETED":
        raise failure(job, job_run.log(), str(job_run.log_file))
    return job_run, layout or cluster.slurm.accounted_layout(job_id)


def follow(client: Slurm, job_run: Run, console: Console, describe: Describe) -> tuple[Job, dict[int, str]]:
    """Wait for the job's end, showing its progress by ``describe``.

    Returns:
        The finished job, and the node of each of its tasks as slurmctld laid them out; empty if the job was too short
        to be seen running.
    """
    layout: dict[int, str] = {}
    metrics: list[dict] = []
    job: Job | None = None
    asked, seen = 0.0, ""
    with Follower(console, describe) as follower:

        def under_way() -> bool:
            return bool(layout) and bool(metrics) and metrics[-1]["step"] < metrics[-1]["steps"]

        def check() -> Job:
            nonlocal job, asked, metrics
            # Each question takes CPU time from the ranks.
            if job is None or not under_way() or time.monotonic() - asked >= ASK:
                job, asked = client.job(job_run.job_id), time.monotonic()
            metrics = job_run.metrics()
            follower.update(job, metrics)
            if job.state == "RUNNING" and not layout:
                layout.update(client.layout(job_run.job_id))
            if not job.is_over:
                raise Pending(f"{job.state} ({job.reason})")
            return job

        def sleep(seconds: float) -> None:
            nonlocal seen
            looked = None if under_way() else client.changed(job_run.job_id, seen, LOOK)
            if looked is None:
                time.sleep(seconds)
            else:
                seen = looked

        what = f"job {job_run.job_id} ends"
        return wait_until(check, what=what, timeout=LONGEST, interval=POLL, sleep=sleep), layout


class Follower:
    """Shows a job's progress: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, describe: Describe):
        self.console, self.describe = console, describe
        self.shown: str | int = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("waiting", total=None)

    def __enter__(self) -> "Follower":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, job: Job, metrics: list[dict]) -> None:
        """Show the job's state, or, once it has written metrics, how far it is."""
        if not metrics:
            state = f"job {job.id}: {job.state}" + (f" ({job.reason})" if job.state == "PENDING" else "")
            self.bar.update(self.task, description=state)
            self.line(state, state)
            return
        last = metrics[-1]
        progress, milestone = self.describe(metrics)
        self.bar.update(self.task, description=progress, completed=last["step"], total=last["steps"])
        if milestone:
            self.line(last["step"], f"step {last['step']}/{last['steps']}  {progress}  {milestone}")

    def line(self, key: str | int, text: str) -> None:
        """Print a line where there is no bar; not twice for the same ``key``."""
        if key != self.shown and not self.console.is_terminal:
            self.shown = key
            self.console.print(text, highlight=False)


def leave_or_cancel(client: Slurm, job_id: str, console: Console) -> None:
    """After Ctrl-C: ask whether to cancel the job. Without a terminal it keeps running."""
    answer = ""
    if console.is_terminal and sys.stdin.isatty():
        try:
            answer = console.input(f"\njob {job_id} is not over: [b]c[/b]ancel it, or [b]l[/b]eave it running (l)? ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
    if answer.strip().lower().startswith("c"):
        client.cancel(job_id)
        console.print(f"cancelled job {job_id}")
    else:
        console.print(f"job {job_id} keeps running; its log is runs/{job_id}.log, cancel it with: scancel {job_id}")
