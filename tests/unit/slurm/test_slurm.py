"""Slurm's client over a runner that answers from a script, and the comparison of placements."""

from pathlib import Path

import pytest

from slurmbed.errors import CommandError, JobFailed, PlacementError, SlurmbedError, WaitTimeout
from slurmbed.process import Result
from slurmbed.slurm import client as slurm
from slurmbed.slurm.parse import Job, Rank, parse_ranks

JOB = "JobId=7 JobName=tp JobState={} Reason=None ExitCode={} NodeList=node-[1-2] StdOut=/workspace/runs/7.log"
SACCT = "JobID|User|State|ExitCode|NNodes|NTasks|NodeList|ElapsedRaw|JobName\n"


class Script:
    """Answers each command by its first word; a list is used up answer by answer, the last one stays."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __call__(self, argv):
        self.calls.append(list(argv))
        answer = self.answers[argv[0]]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        code, out = answer if isinstance(answer, tuple) else (0, answer)
        return Result(tuple(argv), code, out, "")


def test_submit_returns_the_job_id_and_passes_words_on():
    runner = Script(sbatch="12;cluster\n")
    assert slurm.Slurm(runner).submit("--nodes=2", "job.sbatch", "--steps", "5") == "12"
    assert runner.calls == [["sbatch", "--parsable", "--nodes=2", "job.sbatch", "--steps", "5"]]


def test_a_refused_submission_shows_sbatchs_words():
    with pytest.raises(CommandError, match="Node count specification invalid"):
        slurm.Slurm(Script(sbatch=(1, "sbatch: error: Node count specification invalid"))).submit("x")


def test_wait_goes_through_requeue_to_the_end():
    states = [JOB.format(state, "0:0") for state in ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "COMPLETED")]
    assert slurm.Slurm(Script(scontrol=states)).wait("7", timeout=30).state == "COMPLETED"


def test_wait_is_bounded_and_says_the_last_state():
    with pytest.raises(WaitTimeout, match=r"job 7: not after 0 s; last status: PENDING"):
        slurm.Slurm(Script(scontrol=JOB.format("PENDING", "0:0"))).wait("7", timeout=0)


def test_a_failed_job_is_told_with_state_exit_code_and_log():
    client = slurm.Slurm(Script(scontrol=JOB.format("FAILED", "3:0")))
    with pytest.raises(
        JobFailed, match=r"job 7 ended FAILED, exit code 3:0\n    boom\nwhole log: /workspace/runs/7.log"
    ):
        client.wait_completed("7", timeout=5, log=lambda: "boom\n")


def test_a_job_that_slurmctld_forgot_comes_from_accounting():
    rows = SACCT + "7|alice|CANCELLED by 1000|0:15|2||node-[1-2]|5|tp\n"
    job = slurm.Slurm(Script(scontrol=(1, "slurm_load_jobs error: Invalid job id specified"), sacct=rows)).job("7")
    assert job == Job("7", "tp", "CANCELLED", "", "0:15", "node-[1-2]", "")


def test_an_unknown_job():
    client = slurm.Slurm(Script(scontrol=(1, "slurm_load_jobs error: Invalid job id specified"), sacct=SACCT))
    with pytest.raises(SlurmbedError, match="no job 7"):
        client.job("7")


def test_accounted_layout_is_in_blocks_of_the_last_run():
    rows = SACCT + "7.0||NODE_FAIL|1:0|1|3|node-9|1|x\n7.0||COMPLETED|0:0|2|3|node-[1-2]|1|x\n"
    client = slurm.Slurm(Script(sacct=rows, scontrol="node-1\nnode-2\n"))
    assert client.accounted_layout("7") == {0: "node-1", 1: "node-1", 2: "node-2"}


def ranks(*hosts: str, job_id: str = "7", world: int = 2) -> list[Rank]:
    return [Rank(i, world, 0, host, host, job_id, "") for i, host in enumerate(hosts)]


LAYOUT = {0: "node-1", 1: "node-2"}


def test_placement_when_log_and_slurm_agree():
    placed = slurm.placement(ranks("node-1", "node-2"), LAYOUT, "7")
    assert [(item.rank.rank, item.slurm_node) for item in placed] == [(0, "node-1"), (1, "node-2")]
    slurm.require_separate_nodes(placed)


@pytest.mark.parametrize(
    ("found", "layout", "reason"),
    [
        (ranks("node-2", "node-1"), LAYOUT, "rank 0 says host node-2, node node-2; Slurm says node-1"),
        (ranks("node-1", "node-1"), LAYOUT, "rank 1 says host node-1, node node-1; Slurm says node-2"),
        (ranks("node-1"), LAYOUT, r"the log has ranks \[0\], Slurm has \[0, 1\]"),
        (ranks("node-1", "node-2", world=1), LAYOUT, "rank 0 sees a world of 1, Slurm started 2 tasks"),
        (ranks("node-1", "node-2", job_id="6"), LAYOUT, "rank 0 is of job 6, not 7"),
        ([], {}, "Slurm has no ranks"),
        (ranks("node-1", "node-2") + ranks("node-1"), LAYOUT, r"the log has ranks \[0, 1, 0\]"),
        ([], LAYOUT, r"the log has ranks \[\]"),
    ],
)
def test_placement_when_they_do_not(found, layout, reason):
    with pytest.raises(PlacementError, match=reason):
        slurm.placement(found, layout, "7")


def torchrun_log(*changes: tuple[str, str]) -> list[Rank]:
    text = (Path(__file__).parents[2] / "recorded" / "torchrun.txt").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_ranks(text)


def test_torchrun_places_blocks_of_ranks_on_the_nodes_of_slurms_tasks():
    """In the recorded log the second node has the first block: torchrun numbers nodes as it likes."""
    ranks = torchrun_log()
    layout = slurm.block_layout(LAYOUT, ranks)
    assert layout == {0: "node-2", 1: "node-2", 2: "node-1", 3: "node-1"}
    placed = slurm.placement(ranks, layout, "7")
    assert [item.slurm_node for item in placed] == ["node-2", "node-2", "node-1", "node-1"]


def test_a_rank_that_came_over_ssh_is_where_its_host_name_says():
    ranks = torchrun_log(('"slurmd_nodename": "node-2"', '"slurmd_nodename": null'))
    placed = slurm.placement(ranks, slurm.block_layout(LAYOUT, ranks), "7")
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
        slurm.placement(found, slurm.block_layout(tasks, found), "7")


def test_ranks_on_one_node_are_not_on_separate_nodes():
    placed = slurm.placement(ranks("node-1", "node-1"), {0: "node-1", 1: "node-1"}, "7")
    with pytest.raises(PlacementError, match="2 ranks on node-1"):
        slurm.require_separate_nodes(placed)
