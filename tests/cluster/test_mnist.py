"""Digits on two nodes: one torchrun on each under Slurm, two ranks under each torchrun."""

import pytest

from harness import jobs
from harness.internals import parse_ranks
from slurmbed import Job
from slurmbed.course import data

ACCURACY = 0.975  # after one epoch; chance is 0.1


@pytest.fixture(scope="module")
def digits(slurm_cluster) -> data.DigitsRecord:
    return data.digits(slurm_cluster)


def test_torchrun_on_two_nodes_learns_digits_and_every_rank_is_where_slurm_says(slurm, slurm_submit, workspace, digits):
    job = slurm_submit("jobs/mnist.sbatch", "--epochs", "1")
    tasks = {}

    def laid_out(_: Job) -> bool:
        tasks.update(slurm.layout(job.id))
        return bool(tasks)

    slurm.wait(job.id, 60, until=laid_out)
    job.wait(400)
    assert tasks == {0: "node-1", 1: "node-2"}
    assert slurm.accounted_layout(job.id) == tasks
    placed = [(job.placement[rank.rank], rank.local_rank) for rank in parse_ranks(job.stdout)]
    assert sorted(placed) == [("node-1", 0), ("node-1", 1), ("node-2", 0), ("node-2", 1)]
    summary = jobs.summary(workspace, job.id)
    assert summary["world_size"] == 4
    assert summary["data"]["test"] == 10_000
    assert summary["test_accuracy"] > ACCURACY


def test_two_torchruns_on_a_node_are_refused_at_once(slurm_submit, digits):
    job = slurm_submit("--nodes=1", "--ntasks-per-node=2", "jobs/mnist.sbatch")
    assert job.wait_until_over().state == "FAILED"
    said = "2 tasks on 1 nodes, but the launcher is one on each: for more ranks set RANKS_PER_NODE"
    assert said in job.stdout
