"""A job as an object, over answers that Slurm might give."""

from types import SimpleNamespace

import pytest

from slurmbed.process import Result
from slurmbed.slurm.batch import BatchJob, assert_separate_nodes


def job_with(layout: dict[int, str], exit_code: str = "0:0", stdout: str = "one\ntwo\n") -> BatchJob:
    record = SimpleNamespace(stdout="/workspace/out.log", exit_code=exit_code, state="COMPLETED", raw_id="7")
    return BatchJob(
        SimpleNamespace(
            job=lambda _: record,
            runner=lambda argv: Result(tuple(argv), 0, stdout, ""),
            accounted_layout=lambda _: layout,
        ),
        "7",
    )


def test_ranks_on_separate_nodes():
    assert assert_separate_nodes(job_with({0: "node-1", 1: "node-3"})) == {0: "node-1", 1: "node-3"}


def test_ranks_that_share_a_node_are_named_with_the_end_of_the_output():
    with pytest.raises(AssertionError, match=r"ranks share node-1: rank 0 on node-1, rank 1 on node-1\n +one\n +two"):
        assert_separate_nodes(job_with({0: "node-1", 1: "node-1"}))


def test_one_rank_proves_nothing():
    with pytest.raises(AssertionError, match="job 7 has one rank"):
        assert_separate_nodes(job_with({0: "node-1"}))


@pytest.mark.parametrize(("recorded", "status"), [("0:0", 0), ("3:0", 3), ("0:15", 143)])
def test_the_exit_status_is_a_shells(recorded, status):
    assert job_with({}, recorded).exit_code == status
