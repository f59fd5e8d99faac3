"""Slurm through its commands: submit, wait, cancel, accounting, layout. Works over any runner."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmbed.errors import CommandError, PlacementError, SlurmbedError
from slurmbed.process import Result, last_lines
from slurmbed.slurm.batch import TIMEOUT, BatchJob, failure
from slurmbed.slurm.layout import parse_layout
from slurmbed.slurm.records import (
    SACCT,
    SHOW_JOB,
    SHOW_NODES,
    Job,
    JobAccounting,
    Node,
    parse_accounting,
    parse_jobs,
    parse_nodes,
)
from slurmbed.wait import Pending, wait_until

Runner = Callable[[Sequence[str]], Result]
"""Runs an argv where Slurm's commands are: in a login container, on a login node by ssh, or on this machine."""

FROM_STDIN = 'script=$1; shift; printf "%s\n" "$script" | sbatch --parsable "$@"'
"""For bash: submits the script $1 with the options that follow."""
SHOWN = 3  # jobs of an array that a message lists
LOOK = 10  # seconds that one command waits for a job to change
LOOK_FOR_MORE = 1  # the same, for a condition that may depend on more than the job's state
CHANGED = """
soon=$((SECONDS + 2)) end=$((SECONDS + $2))
look() { now=$(squeue --noheader --states=all --format='%i %T %r' --jobs="$1" 2>&1); }
until look "$1"; [ "$now" != "$3" ] || ((SECONDS >= end)); do sleep 0.$((SECONDS < soon ? 2 : 5)); done
printf '%s' "$now"
"""
"""For bash: prints a job's line of squeue as soon as it differs from $3, or after $2 seconds.

It looks less often after two seconds: each look takes 10 ms of CPU, which ranks may need.
"""


class Slurm:
    """Slurm's commands over ``runner``.

    A job id is a text, as squeue shows it: 7 (a job, a whole array, a whole heterogeneous job), 7_2 (task 2 of
    array 7) or 7+1 (component 1 of heterogeneous job 7). Every method raises CommandError if Slurm refuses a command.
    """

    def __init__(self, runner: Runner):
        self.runner = runner

    def nodes(self) -> list[Node]:
        """All node records, in slurmctld's order, which is its order of ranks."""
        return parse_nodes(self.runner(SHOW_NODES).check().stdout)

    def submit(self, *arguments: str) -> str:
        """Run ``sbatch ARGUMENTS...``. Returns the job's id. CommandError with sbatch's message if it fails."""
        return self.runner(["sbatch", "--parsable", *arguments]).check().stdout.strip().split(";")[0]

    def sbatch(self, script: str | Path, *options: str) -> BatchJob:
        """Submit a job script. Returns the job as an object.

        Args:
            script: the text of a script, which begins with ``#!``, or the path of one as the cluster sees it.
            options: options of sbatch, like ``--nodes=2``.

        Raises:
            CommandError: sbatch failed; with its message.
        """
        if not str(script).startswith("#!"):
            return BatchJob(self, self.submit(*options, str(script)))
        done = self.runner(["bash", "-c", FROM_STDIN, "sbatch", str(script), *options])
        if not done.ok:
            raise CommandError("sbatch refused the script", "", last_lines(done.output))
        return BatchJob(self, done.stdout.strip().split(";")[0])

    def run(self, *arguments: str, timeout: float = TIMEOUT) -> BatchJob:
        """Run ``sbatch ARGUMENTS...``, and block until the job is over.

        Raises:
            CommandError, JobFailed, WaitTimeout: as ``submit`` and ``BatchJob.wait``.
        """
        job = BatchJob(self, self.submit(*arguments))
        job.wait(timeout)
        return job

    def jobs(self, job_id: str) -> list[Job]:
        """The job, all tasks of the array, or all components of the heterogeneous job that ``job_id`` names.

        An array's tasks are in order; those that have not started are one record, the last. slurmctld forgets a job
        MinJobAge seconds after its end; then its record comes from accounting. Slurm keeps no record of a single task
        that was cancelled before it started.

        Raises:
            SlurmbedError: neither slurmctld nor accounting knows such a job.
        """
        return self._with_forgotten(job_id, *self._show(job_id))

    def all_jobs(self) -> list[Job]:
        """All jobs that slurmctld knows: those that are not over, and those that ended within MinJobAge."""
        return parse_jobs(self.runner(SHOW_JOB).check().stdout)

    def job(self, job_id: str) -> Job:
        """The job. For an array or a heterogeneous job, the task or component that determines the state of the whole.

        That is the first one that is not over, else the first that did not end COMPLETED, else the first.

        Raises:
            SlurmbedError: neither slurmctld nor accounting knows such a job.
        """
        return deciding(self.jobs(job_id))

    def wait(self, job_id: str, timeout: float, until: Callable[[Job], bool] | None = None) -> Job:
        """Block until the job is over, or ``until`` holds. Returns the record that ``job`` returns.

        Args:
            timeout: seconds.
            until: a condition on every task or component that is not over.

        Raises:
            WaitTimeout: neither happened within ``timeout``.
        """
        return deciding(self._wait_all(job_id, timeout, until))

    def wait_completed(self, job_id: str, timeout: float, log: Callable[[], str] = str) -> Job:
        """Block until the job is over, with all its tasks or components. Returns its record.

        Args:
            timeout: seconds.
            log: returns the text of the job's log, for the error.

        Raises:
            JobFailed: the job, a task or a component did not end COMPLETED; with the last lines of ``log()``.
            WaitTimeout: it was not over within ``timeout``.
        """
        jobs = self._wait_all(job_id, timeout)
        job = deciding(jobs)
        if job.state != "COMPLETED":
            raise failure(job, log(), jobs=jobs)
        return job

    def cancel(self, job_id: str) -> None:
        self.runner(["scancel", job_id]).check()

    def accounting(self, job_id: str) -> list[JobAccounting]:
        """The job's records in accounting: one for each run of each task or component. Empty if it has none yet."""
        return parse_accounting(self.runner([*SACCT, f"--jobs={job_id}"]).check().stdout)

    def hostnames(self, nodelist: str) -> list[str]:
        """The nodes of a list like ``node-[1-3]``, in Slurm's order."""
        return self.runner(["scontrol", "show", "hostnames", nodelist]).check().stdout.split()

    def layout(self, job_id: str, step: str = "0") -> dict[int, str]:
        """Rank to node of a running step, from slurmctld; empty if no such step runs (yet, or any more)."""
        shown = self.runner(["sattach", "--layout", f"{job_id}.{step}"])
        return parse_layout(shown.stdout) if shown.ok else {}

    def accounted_layout(self, job_id: str, step: str = "0") -> dict[int, str]:
        """Rank to node of a step that is over, from accounting, for the job's last run.

        Ranks of a heterogeneous job are numbered across its components, as by ``srun --het-group=0,1``.

        Raises:
            PlacementError: accounting has no such step, the id is that of a whole array, or accounting does not keep
                the layout of this distribution.
        """
        found = {row.id: one for row in self.accounting(job_id) for one in row.steps if one.id == step}
        if not found:
            raise PlacementError(f"accounting has no step {job_id}.{step}", f"sacct -j {job_id} shows what it has")
        if len(found) > 1 and any("_" in each for each in found):
            raise PlacementError(f"job {job_id} is an array: each task has its own ranks", f"name one: {min(found)}")
        return dict(enumerate(node for one in found.values() for node in one.layout()))

    def _show(self, job_id: str) -> tuple[list[Job], str]:
        """slurmctld's records of a job, and the standard error of scontrol.

        The list is empty for an unknown job, and if slurmctld does not answer: scontrol's JSON is the same for both,
        with exit status 0.
        """
        shown = self.runner([*SHOW_JOB, job_id])
        jobs = parse_jobs(shown.stdout) if shown.ok else []
        # The JSON has the whole array, or all components, even if the id names one of them.
        return [job for job in jobs if job.is_named(job_id)], shown.stderr

    def _with_forgotten(self, job_id: str, known: list[Job], error: str) -> list[Job]:
        """Add the ended jobs that slurmctld no longer knows; it forgets an array's tasks one by one."""
        if known and known[0].array_job_id != job_id:
            return known
        by_raw_id: dict[str, Job] = {row.raw_id: row for row in self.accounting(job_id)}  # a requeued job's last run
        by_raw_id |= {job.raw_id: job for job in known}
        if not by_raw_id:
            reason = f"no job {job_id}, neither in slurmctld nor in accounting"
            raise SlurmbedError(reason, "sacct --allusers lists jobs", last_lines(error, 3))
        return sorted(by_raw_id.values(), key=lambda job: job.position)

    def _wait_all(self, job_id: str, timeout: float, until: Callable[[Job], bool] | None = None) -> list[Job]:
        def waiting(jobs: list[Job]) -> list[Job]:
            return [job for job in jobs if not job.is_over and not (until and until(job))]

        def check() -> list[Job]:
            jobs, error = self._show(job_id)
            if not waiting(jobs):  # only then is it worth asking accounting
                jobs = self._with_forgotten(job_id, jobs, error)
            if left := waiting(jobs):
                raise Pending(describe(left) if len(jobs) > 1 else f"{left[0].state} ({left[0].reason})")
            return jobs

        longest = min(LOOK_FOR_MORE if until else LOOK, math.ceil(timeout))
        seen = self.changed(job_id, "", 0) or ""  # before the first check, so that no later change is overlooked

        def sleep(seconds: float) -> None:
            nonlocal seen
            looked = self.changed(job_id, seen, longest)
            if looked is None:  # the command cannot run, for example because the login node is down
                time.sleep(seconds)
            else:
                seen = looked

        hint = f"scontrol show job {job_id}"
        return wait_until(check, what=f"job {job_id}", timeout=timeout, hint=hint, sleep=sleep)

    def changed(self, job_id: str, seen: str, seconds: int) -> str | None:
        """Block until the job's line of squeue differs from ``seen``, but at most ``seconds``.

        One command waits in the cluster, instead of a new one for each look: a `docker exec` costs 80 ms of CPU.

        Returns:
            The line then; None if the command failed.
        """
        waited = self.runner(["bash", "-c", CHANGED, "changed", job_id, str(seconds), seen])
        return waited.stdout if waited.ok else None


def deciding(jobs: Sequence[Job]) -> Job:
    """The task or component that determines the state of an array or a heterogeneous job: see Slurm.job."""
    unfinished = [job for job in jobs if not job.is_over]
    failed = [job for job in jobs if job.state != "COMPLETED"]
    return (unfinished or failed or list(jobs))[0]


def describe(jobs: Sequence[Job]) -> str:
    """States of the first jobs, and how many more there are."""
    shown = ", ".join(f"{job.id} {job.state} ({job.reason})" for job in jobs[:SHOWN])
    return shown + (f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else "")
