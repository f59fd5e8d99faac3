"""Slurm through its commands: submit, wait, cancel, accounting, placement. Works over any runner."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmbed.errors import JobFailed, PlacementError, SlurmbedError
from slurmbed.process import Result, last_lines
from slurmbed.slurm import parse
from slurmbed.wait import Pending, wait_until

Runner = Callable[[Sequence[str]], Result]
"""Runs an argv where Slurm's commands are: in a login container, on a login node by ssh, or here."""


@dataclass(frozen=True)
class Placed:
    """One rank with the node it named itself and the node that Slurm gave it."""

    rank: parse.Rank
    slurm_node: str


class Slurm:
    """Slurm's commands over ``runner``."""

    def __init__(self, runner: Runner):
        self.runner = runner

    def nodes(self) -> list[parse.Node]:
        return parse.parse_nodes(self.runner(["scontrol", "--oneliner", "show", "nodes"]).check().stdout)

    def submit(self, *words: str) -> str:
        """``sbatch WORDS...`` and the id of the job. CommandError with sbatch's own words if it refuses."""
        return self.runner(["sbatch", "--parsable", *words]).check().stdout.strip().split(";")[0]

    def job(self, job_id: str) -> parse.Job:
        """The job as slurmctld knows it, or as accounting does once slurmctld forgot it."""
        known = self.runner(["scontrol", "--oneliner", "show", "job", job_id])
        if known.ok:
            return parse.parse_job(known.stdout)
        if row := self._last_row(job_id):
            state = row["State"].split()[0]  # "CANCELLED by 1000"
            return parse.Job(job_id, row["JobName"], state, "", row["ExitCode"], row["NodeList"], "")
        raise SlurmbedError(f"no job {job_id}, neither in slurmctld nor in accounting", "sacct --allusers lists jobs")

    def wait(self, job_id: str, timeout: float, until: Callable[[parse.Job], bool] | None = None) -> parse.Job:
        """The job once it is over, or once ``until`` holds.

        Raises:
            WaitTimeout: neither came within ``timeout`` seconds.
        """
        until = until or (lambda job: job.is_over)

        def check() -> parse.Job:
            job = self.job(job_id)
            if not until(job) and not job.is_over:
                raise Pending(f"{job.state} ({job.reason})")
            return job

        return wait_until(check, what=f"job {job_id}", timeout=timeout, hint=f"scontrol show job {job_id}")

    def wait_completed(self, job_id: str, timeout: float, log: Callable[[], str] = str) -> parse.Job:
        """The job once it is over; JobFailed with the last lines of ``log()`` unless it is COMPLETED."""
        job = self.wait(job_id, timeout)
        if job.state != "COMPLETED":
            raise failure(job, log())
        return job

    def release(self, job_id: str) -> None:
        """Let a job go that was submitted with ``--hold``."""
        self.runner(["scontrol", "release", job_id]).check()

    def cancel(self, job_id: str) -> None:
        self.runner(["scancel", job_id]).check()

    def accounting(self, job_id: str) -> list[dict[str, str]]:
        """The rows of sacct for a job and its steps; ``NTasks`` and ``NodeList`` as Slurm writes them."""
        fields = "JobID,User,State,ExitCode,NNodes,NTasks,NodeList,ElapsedRaw,JobName"
        argv = ["sacct", "--allusers", "--parsable2", "--duplicates", f"--jobs={job_id}", f"--format={fields}"]
        return parse.parse_table(self.runner(argv).check().stdout)

    def _last_row(self, job_id: str, step: str = "") -> dict[str, str] | None:
        """Of a requeued job accounting has rows for every run; the last one counts."""
        rows = [row for row in self.accounting(job_id) if row["JobID"] == job_id + step]
        return rows[-1] if rows else None

    def hostnames(self, nodelist: str) -> list[str]:
        """``node-[1-3]`` spelt out, in Slurm's order."""
        return self.runner(["scontrol", "show", "hostnames", nodelist]).check().stdout.split()

    def layout(self, job_id: str, step: str = "0") -> dict[int, str]:
        """Rank to node as slurmctld laid out a running step; empty when there is no such step (yet, or any more)."""
        shown = self.runner(["sattach", "--layout", f"{job_id}.{step}"])
        return parse.parse_layout(shown.stdout) if shown.ok else {}

    def accounted_layout(self, job_id: str, step: str = "0") -> dict[int, str]:
        """Rank to node from accounting, for a step that is over: its tasks in blocks over its nodes, srun's default."""
        row = self._last_row(job_id, f".{step}")
        if row is None:
            raise PlacementError(f"accounting has no step {job_id}.{step}", f"sacct -j {job_id} shows what it has")
        nodes, tasks = self.hostnames(row["NodeList"]), int(row["NTasks"])
        share, more = divmod(tasks, len(nodes))
        owners = [node for i, node in enumerate(nodes) for _ in range(share + (i < more))]
        return dict(enumerate(owners))


def failure(job: parse.Job, log: str, log_file: str = "") -> JobFailed:
    """What to tell of a job that did not complete: state, exit code, last log lines, where the rest is."""
    reason = f"job {job.id} ended {job.state}, exit code {job.exit_code}"
    if job.reason not in ("", "None"):
        reason += f" ({job.reason})"
    where = log_file or job.stdout
    return JobFailed(reason, f"whole log: {where}" if where else "", last_lines(log))


def placement(ranks: list[parse.Rank], layout: dict[int, str], job_id: str) -> list[Placed]:
    """Ranks beside the nodes Slurm gave them, once both sources agree.

    Args:
        ranks: the rank records of the job's log.
        layout: rank to node, as Slurm says.

    Raises:
        PlacementError: a rank is missing, there twice or of another job, or sits on another node than Slurm says.
    """
    wrong = [] if layout else ["Slurm has no ranks"]
    if sorted(rank.rank for rank in ranks) != sorted(layout):
        wrong.append(f"the log has ranks {[rank.rank for rank in ranks]}, Slurm has {sorted(layout)}")
    for rank in ranks:
        if rank.world_size != len(layout):
            wrong.append(f"rank {rank.rank} sees a world of {rank.world_size}, Slurm started {len(layout)} tasks")
        if rank.job_id != job_id:
            wrong.append(f"rank {rank.rank} is of job {rank.job_id}, not {job_id}")
        slurm_node = layout.get(rank.rank)
        if slurm_node and not rank.host == (rank.node or rank.host) == slurm_node:  # over ssh Slurm names no node
            wrong.append(f"rank {rank.rank} says host {rank.host}, node {rank.node}; Slurm says {slurm_node}")
    if wrong:
        raise PlacementError("the log and Slurm disagree on placement", "", "\n".join(f"    {line}" for line in wrong))
    return [Placed(rank, layout[rank.rank]) for rank in ranks]


def block_layout(tasks: dict[int, str], ranks: list[parse.Rank]) -> dict[int, str]:
    """Rank to node for ranks that Slurm did not start itself: a torchrun on each node did, or ssh, or Ray.

    Each node has a block of ranks, as many on each, but which node gets which block is the launcher's choice. So the
    choice is taken from the log; that each node Slurm gave has a block, and no other node one, is checked here, and the
    rest by ``placement``.

    Args:
        tasks: task to node, as Slurm says; one task on each node. Or, where Slurm sees none, the job's nodes, numbered.
        ranks: the rank records of the job's log.

    Raises:
        PlacementError: the blocks' nodes are not the nodes of Slurm's tasks.
    """
    blocks = [rank.host for rank in ranks if rank.local_rank == 0]
    if not tasks or sorted(blocks) != sorted(tasks.values()):
        raise PlacementError(
            "the log and Slurm disagree on placement",
            "",
            f"    the log has a first rank on {blocks}, the job's nodes are {list(tasks.values())}",
        )
    size = ranks[0].world_size // len(blocks)
    return {block * size + i: node for block, node in enumerate(blocks) for i in range(size)}


def require_separate_nodes(placed: list[Placed]) -> None:
    """PlacementError unless every rank has a node of its own."""
    shared = {node: count for node, count in Counter(item.slurm_node for item in placed).items() if count > 1}
    if shared:
        raise PlacementError("ranks share a node: " + ", ".join(f"{n} ranks on {node}" for node, n in shared.items()))
