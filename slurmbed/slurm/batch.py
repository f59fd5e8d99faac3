"""A submitted job as an object: wait for it, read it, prove where its ranks ran."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmbed.process import last_lines
from slurmbed.slurm.placement import parse_ranks, placement
from slurmbed.slurm.records import Job

if TYPE_CHECKING:
    from slurmbed.slurm.client import Slurm

TIMEOUT = 300  # seconds


@dataclass(frozen=True)
class BatchJob:
    """A job that was submitted; ``id`` as Slurm.job takes it."""

    slurm: "Slurm"
    id: str

    def wait(self, timeout: float = TIMEOUT) -> Job:
        """Block until the job is over; its record.

        Args:
            timeout: seconds.

        Raises:
            JobFailed: it ended in another state than COMPLETED; with the reason and the last lines of its output.
            WaitTimeout: it was not over within ``timeout``.
        """
        return self.slurm.wait_completed(self.id, timeout, log=lambda: self.stdout)

    def wait_until_over(self, timeout: float = TIMEOUT) -> Job:
        """As ``wait``, but however it ends: for jobs that are to fail."""
        return self.slurm.wait(self.id, timeout)

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
        """What the job has written to its standard output file so far, "" if there is none (yet).

        It is read on the login node: the file must be in a folder that the nodes share.
        """
        read = self.slurm.runner(["cat", self.record.stdout])
        return read.stdout if read.ok else ""

    @property
    def placement(self) -> dict[int, str]:
        """Rank to node of the job's first step, from Slurm's accounting.

        If the job printed rank records (slurmbed.slurm.placement), they must agree.

        Raises:
            PlacementError: the job started no ranks with srun, or its records disagree with Slurm.
        """
        layout = self.slurm.accounted_layout(self.id)
        if ranks := parse_ranks(self.stdout):
            placement(ranks, layout, self.record.raw_id)
        return layout


def assert_separate_nodes(job: BatchJob) -> Mapping[int, str]:
    """Assert that the job had two ranks or more, each on a node of its own; rank to node.

    Raises:
        AssertionError: they share a node; with where each was, and the last lines of the job's output.
        PlacementError: as ``BatchJob.placement``.
    """
    layout = job.placement
    where = ", ".join(f"rank {rank} on {node}" for rank, node in sorted(layout.items()))
    shared = sorted(node for node, count in Counter(layout.values()).items() if count > 1)
    tail = last_lines(job.stdout, 10)
    assert len(layout) > 1, f"job {job.id} has one rank: {where}\n{tail}"
    assert not shared, f"job {job.id}: ranks share {', '.join(shared)}: {where}\n{tail}"
    return layout
