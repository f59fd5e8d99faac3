"""Where ranks ran, by two sources that must agree: the rank records in a job's log, and Slurm's own layout."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmbed.errors import PlacementError


@dataclass(frozen=True)
class RankRecord:
    """Where one rank ran, as the rank itself says in its first line of the log.

    Args:
        host: its host name.
        node: its SLURMD_NODENAME; None if Slurm did not start it, as over ssh.
        shard: a description of what it holds or trains on.
        restarts: how often Slurm had requeued the job.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    node: str | None
    job_id: str | None
    shard: str
    restarts: int = 0


@dataclass(frozen=True)
class Placed:
    """A rank's own record, and the node that Slurm gave it."""

    rank: RankRecord
    slurm_node: str


def parse_ranks(log: str) -> list[RankRecord]:
    """Rank records (JSON lines) of a job's log, by rank. For a requeued job, those of its last run.

    Raises:
        PlacementError: a record is broken or lacks a field.
    """
    ranks = []
    for line in log.splitlines():
        # srun --label puts "3: " before a line.
        start = line.find('{"record": "rank"')
        if start >= 0:
            ranks.append(_rank_record(line[start:]))
    last = max((rank.restarts for rank in ranks), default=0)
    return sorted((rank for rank in ranks if rank.restarts == last), key=lambda rank: rank.rank)


def _rank_record(line: str) -> RankRecord:
    try:
        record = json.loads(line)
        return RankRecord(
            rank=record["rank"],
            world_size=record["world_size"],
            local_rank=record["local_rank"],
            host=record["host"],
            node=record.get("slurmd_nodename"),
            job_id=record.get("job_id"),
            shard=record.get("shard") or "",
            restarts=record.get("restarts", 0),
        )
    except (json.JSONDecodeError, KeyError) as error:
        raise PlacementError(f"the log has a rank record that cannot be read: {error!r}", "", f"    {line}") from None


def placement(ranks: Sequence[RankRecord], layout: Mapping[int, str], job_id: str) -> list[Placed]:
    """Each rank with the node that Slurm gave it, if both sources agree.

    Args:
        ranks: the rank records of the job's log.
        layout: rank to node, as Slurm says.
        job_id: as in the ranks' SLURM_JOB_ID, which is Job.raw_id for an array's task.

    Raises:
        PlacementError: a rank is missing, duplicate or of another job, or ran on another node than Slurm says.
    """
    wrong = [] if layout else ["Slurm has no ranks"]
    if sorted(rank.rank for rank in ranks) != sorted(layout):
        wrong.append(f"the log has ranks {[rank.rank for rank in ranks]}, Slurm has {sorted(layout)}")
    for rank in ranks:
        if rank.world_size != len(layout):
            wrong.append(f"rank {rank.rank} has world size {rank.world_size}, but Slurm started {len(layout)} tasks")
        if rank.job_id != job_id:
            wrong.append(f"rank {rank.rank} is of job {rank.job_id}, not {job_id}")
        slurm_node = layout.get(rank.rank)
        if slurm_node and not rank.host == (rank.node or rank.host) == slurm_node:  # over ssh Slurm names no node
            wrong.append(f"rank {rank.rank} says host {rank.host}, node {rank.node}; Slurm says {slurm_node}")
    if wrong:
        raise PlacementError("the log and Slurm disagree on placement", "", "\n".join(f"    {line}" for line in wrong))
    return [Placed(rank, layout[rank.rank]) for rank in ranks]


def block_layout(tasks: Mapping[int, str], ranks: Sequence[RankRecord]) -> dict[int, str]:
    """Rank to node for ranks that Slurm did not start itself: a torchrun on each node did, or ssh, or Ray.

    Every node has a block of ranks of the same size, but the launcher chooses which node gets which block. That choice
    is read from the log. This function checks that the nodes with blocks are the job's; ``placement`` checks the rest.

    Args:
        tasks: task to node, from Slurm; one task on each node. If Slurm started no tasks, the job's nodes, numbered.
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


def require_separate_nodes(placed: Sequence[Placed]) -> None:
    """PlacementError unless every rank has a separate node."""
    shared = {node: count for node, count in Counter(item.slurm_node for item in placed).items() if count > 1}
    if shared:
        raise PlacementError("ranks share a node: " + ", ".join(f"{n} ranks on {node}" for node, n in shared.items()))
