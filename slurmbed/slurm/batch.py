"""A submitted job as an object: wait for it, read its output, prove where its ranks ran."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmbed.errors import JobFailed
from slurmbed.process import last_lines
from slurmbed.slurm.placement import block_layout, parse_ranks, placement
from slurmbed.slurm.records import Job
from slurmbed.wait import Pending, wait_until

if TYPE_CHECKING:
    from slurmbed.slurm.client import Slurm

TIMEOUT = 300  # seconds
LOOK = 5  # seconds that one command waits for a job's output
WRITTEN = """
end=$((SECONDS + $3))
until grep --quiet --no-messages --fixed-strings -- "$1" "$2"; do
  ((SECONDS < end)) || exit 1
  sleep 0.2
done
"""
"""For bash: waits until the file $2 has the text $1, but at most $3 seconds."""


@dataclass(frozen=True)
class BatchJob:
    """A submitted job. ``id`` is an id as for Slurm.job."""

    slurm: "Slurm"
    id: str

    def wait(self, timeout: float = TIMEOUT) -> Job:
        """Block until the job is over. Returns its record.

        Args:
            timeout: seconds.

        Raises:
            JobFailed: it did not end COMPLETED; with the reason and the last lines of its output.
            WaitTimeout: it was not over within ``timeout``.
        """
        return self.slurm.wait_completed(self.id, timeout, log=lambda: self.stdout)

    def wait_until_over(self, timeout: float = TIMEOUT) -> Job:
        """Like ``wait``, but without JobFailed: for jobs that are expected to fail."""
        return self.slurm.wait(self.id, timeout)

    def wait_for_state(self, state: str, reason: str = "", timeout: float = TIMEOUT) -> Job:
        """Block until the job is in that state, like RUNNING, for the reason if one is given. Returns its record.

        Raises:
            JobFailed: it ended in another state; with the reason and the last lines of its output.
            WaitTimeout: it was not in that state within ``timeout`` seconds.
        """
        job = self.slurm.wait(self.id, timeout, lambda job: job.state == state and reason in ("", job.reason))
        if job.state != state:
            raise failure(job, self.stdout)
        return job

    def wait_for_output(self, text: str, timeout: float = TIMEOUT) -> str:
        """Block until a line of its standard output file contains ``text``. Returns the contents of the file.

        Raises:
            JobFailed: it ended without that; with the last lines of its output.
            WaitTimeout: no line had the text within ``timeout`` seconds.
        """

        def check() -> str:
            job = self.record  # Slurm names the file of an array's task only once it has started
            waits = "0" if job.is_over else str(LOOK)
            if self.slurm.runner(["bash", "-c", WRITTEN, "written", text, job.stdout, waits]).ok:
                return self.stdout
            if job.is_over:
                raise JobFailed(f"job {self.id} ended without {text!r} in its output", "", last_lines(self.stdout))
            raise Pending(last_lines(self.stdout))

        return wait_until(check, what=f"{text!r} in the output of job {self.id}", timeout=timeout)

    def cancel(self) -> None:
        self.slurm.cancel(self.id)

    @property
    def record(self) -> Job:
        return self.slurm.job(self.id)

    @property
    def state(self) -> str:
        """Like PENDING, RUNNING or COMPLETED: https://slurm.schedmd.com/job_state_codes.html"""
        return self.record.state

    @property
    def exit_code(self) -> int:
        """The exit status of the job script; 128 and the signal's number if a signal ended it."""
        status, _, number = self.record.exit_code.partition(":")
        return int(status) or (128 + int(number) if int(number or 0) else 0)

    @property
    def stdout(self) -> str:
        """The contents of its standard output file so far; "" if there is no file (yet).

        The login node reads it: the file must be in a folder that all nodes share.
        """
        read = self.slurm.runner(["cat", self.record.stdout])
        return read.stdout if read.ok else ""

    @property
    def placement(self) -> dict[int, str]:
        """Rank to node of the job's first step, from Slurm's accounting.

        If the job printed rank records (slurmbed.slurm.placement), they must agree. If the records show that each task
        was a launcher such as torchrun, the result has the launcher's ranks.

        Raises:
            PlacementError: the job started no ranks with srun, or its records disagree with Slurm.
        """
        layout = self.slurm.accounted_layout(self.id)
        if ranks := parse_ranks(self.stdout):
            if len(ranks) > len(layout):
                layout = block_layout(layout, ranks)
            placement(ranks, layout, self.record.raw_id)
        return layout


def assert_separate_nodes(job: BatchJob) -> Mapping[int, str]:
    """Assert that the job had two ranks or more, each on a separate node. Returns rank to node.

    Raises:
        AssertionError: ranks share a node; with the node of each, and the last lines of the job's output.
        PlacementError: as ``BatchJob.placement``.
    """
    layout = job.placement
    where = ", ".join(f"rank {rank} on {node}" for rank, node in sorted(layout.items()))
    shared = sorted(node for node, count in Counter(layout.values()).items() if count > 1)
    tail = last_lines(job.stdout, 10)
    assert len(layout) > 1, f"job {job.id} has one rank: {where}\n{tail}"
    assert not shared, f"job {job.id}: ranks share {', '.join(shared)}: {where}\n{tail}"
    return layout


def failure(job: Job, log: str, log_file: str = "", jobs: Sequence[Job] = ()) -> JobFailed:
    """The error for a job that did not complete: state, exit code, last lines of its log, path of the log.

    Args:
        log: the text of the log.
        log_file: its path; by default, the path from Slurm.
        jobs: all tasks or components, of which ``job`` is one.
    """
    reason = f"job {job.id} ended {job.state}, exit code {job.exit_code}"
    if job.reason not in ("", "None"):
        reason += f" ({job.reason})"
    if len(jobs) > 1:
        failed = [each for each in jobs if each.state != "COMPLETED"]
        reason += f"; not completed: {len(failed)} of {len(jobs)}"
    log_file = log_file or job.stdout
    return JobFailed(reason, f"whole log: {log_file}" if log_file else "", last_lines(log))
