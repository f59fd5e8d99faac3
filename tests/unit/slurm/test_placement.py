"""Rank records of logs, and their comparison with what Slurm says."""

from pathlib import Path

import pytest

from slurmbed.errors import PlacementError
from slurmbed.slurm.placement import RankRecord, block_layout, parse_ranks, placement, require_separate_nodes


def rank_line(rank: int, host: str = "node-1") -> str:
    return (
        f'{{"record": "rank", "rank": {rank}, "world_size": 2, "local_rank": 0, "host": "{host}", '
        f'"slurmd_nodename": "{host}", "job_id": "7", "shard": "all"}}'
    )


def test_ranks_are_found_among_other_lines_and_behind_labels():
    log = f"srun: hello\n1: {rank_line(1, 'node-2')}\nstep 1/2 {{not json}}\n{rank_line(0)}\n"
    ranks = parse_ranks(log)
    assert [(rank.rank, rank.host, rank.node) for rank in ranks] == [(0, "node-1", "node-1"), (1, "node-2", "node-2")]


def test_a_rank_that_is_there_twice_stays_twice():
    ranks = parse_ranks("\n".join([rank_line(0, "node-1"), rank_line(0, "node-3")]))
    assert [rank.host for rank in ranks] == ["node-1", "node-3"]


def test_of_a_requeued_job_the_ranks_of_its_last_run_count():
    """Its log is appended to. Between the runs it may have got other nodes."""
    again = rank_line(0, "node-3").replace("}", ', "restarts": 1}')
    assert [rank.host for rank in parse_ranks("\n".join([rank_line(0), rank_line(1), again]))] == ["node-3"]


@pytest.mark.parametrize("line", [rank_line(0)[:-9], rank_line(0).replace("local_rank", "other")])
def test_a_broken_rank_record_is_shown(line):
    with pytest.raises(PlacementError, match=r'cannot be read(.|\n)*{"record": "rank", "rank": 0'):
        parse_ranks(line)


def ranks(*hosts: str, job_id: str = "7", world: int = 2) -> list[RankRecord]:
    return [RankRecord(i, world, 0, host, host, job_id, "") for i, host in enumerate(hosts)]


LAYOUT = {0: "node-1", 1: "node-2"}


def test_placement_when_log_and_slurm_agree():
    placed = placement(ranks("node-1", "node-2"), LAYOUT, "7")
    assert [(item.rank.rank, item.slurm_node) for item in placed] == [(0, "node-1"), (1, "node-2")]
    require_separate_nodes(placed)


@pytest.mark.parametrize(
    ("found", "layout", "reason"),
    [
        (ranks("node-2", "node-1"), LAYOUT, "rank 0 says host node-2, node node-2; Slurm says node-1"),
        (ranks("node-1", "node-1"), LAYOUT, "rank 1 says host node-1, node node-1; Slurm says node-2"),
        ([RankRecord(0, 1, 0, "node-9", "node-1", "7", "")], {0: "node-1"}, "rank 0 says host node-9, node node-1"),
        (ranks("node-1"), LAYOUT, r"the log has ranks \[0\], Slurm has \[0, 1\]"),
        (ranks("node-1", "node-2", world=1), LAYOUT, "rank 0 has world size 1, but Slurm started 2 tasks"),
        (ranks("node-1", "node-2", job_id="6"), LAYOUT, "rank 0 is of job 6, not 7"),
        ([], {}, "Slurm has no ranks"),
        (ranks("node-1", "node-2") + ranks("node-1"), LAYOUT, r"the log has ranks \[0, 1, 0\]"),
        ([], LAYOUT, r"the log has ranks \[\]"),
    ],
)
def test_placement_when_they_do_not(found, layout, reason):
    with pytest.raises(PlacementError, match=reason):
        placement(found, layout, "7")


def torchrun_log(*changes: tuple[str, str]) -> list[RankRecord]:
    text = (Path(__file__).parents[2] / "recorded" / "torchrun.txt").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_ranks(text)


def test_torchrun_places_blocks_of_ranks_on_the_nodes_of_slurms_tasks():
    """In the recorded log the second node has the first block: torchrun numbers nodes as it likes."""
    ranks = torchrun_log()
    layout = block_layout(LAYOUT, ranks)
    assert layout == {0: "node-2", 1: "node-2", 2: "node-1", 3: "node-1"}
    placed = placement(ranks, layout, "7")
    assert [item.slurm_node for item in placed] == ["node-2", "node-2", "node-1", "node-1"]


def test_a_rank_that_came_over_ssh_is_where_its_host_name_says():
    ranks = torchrun_log(('"slurmd_nodename": "node-2"', '"slurmd_nodename": null'))
    placed = placement(ranks, block_layout(LAYOUT, ranks), "7")
    assert [item.slurm_node for item in placed] == ["node-2", "node-2", "node-1", "node-1"]


@pytest.mark.parametrize(
    ("found", "tasks", "reason"),
    [
        (
            torchrun_log(("node-2", "node-3")),
            LAYOUT,
            r"on \['node-3', 'node-1'\], the job's nodes are \['node-1', 'node-2'\]",
        ),
        (torchrun_log(("node-2", "node-1")), LAYOUT, r"on \['node-1', 'node-1'\], the job's"),
        (
            torchrun_log(('"slurmd_nodename": "node-2"', '"slurmd_nodename": "node-1"')),
            LAYOUT,
            "host node-2, node node-1",
        ),
        (torchrun_log(), {0: "node-1"}, "the job's nodes are"),
        (torchrun_log(), {}, "the job's nodes are"),
        ([], LAYOUT, r"a first rank on \[\]"),
        (torchrun_log()[:3], LAYOUT, r"the log has ranks \[0, 1, 2\], Slurm has \[0, 1, 2, 3\]"),
        (torchrun_log(('"job_id": "7"', '"job_id": "6"')), LAYOUT, "rank 0 is of job 6, not 7"),
        (torchrun_log(('"host": "node-2"', '"host": "node-1"')), LAYOUT, r"a first rank on \['node-1', 'node-1'\]"),
        (torchrun_log(('"rank": 1', '"rank": 0')), LAYOUT, r"the log has ranks \[0, 0, 2, 3\]"),
        (torchrun_log(('"world_size": 4', '"world_size": 2')), LAYOUT, r"Slurm has \[0, 1\]"),
    ],
)
def test_torchrun_placement_when_log_and_slurm_disagree(found, tasks, reason):
    with pytest.raises(PlacementError, match=reason):
        placement(found, block_layout(tasks, found), "7")


def test_ranks_on_one_node_are_not_on_separate_nodes():
    placed = placement(ranks("node-1", "node-1"), {0: "node-1", 1: "node-1"}, "7")
    with pytest.raises(PlacementError, match="2 ranks on node-1"):
        require_separate_nodes(placed)
