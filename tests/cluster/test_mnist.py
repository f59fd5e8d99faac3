"""Digits on two nodes: one torchrun on each under Slurm, two ranks under each torchrun."""

import pytest

from harness import jobs
from harness.internals import Job, block_layout, parse_ranks, placement
from slurmbed.course import data

ACCURACY = 0.975  # after one epoch; chance is 0.1


@pytest.fixture(scope="module")
def digits(cluster) -> data.DigitsRecord:
    return data.digits(cluster)


def test_torchrun_on_two_nodes_learns_digits_and_every_rank_is_where_slurm_says(cluster, workspace, digits):
    job_id = cluster.slurm.submit("jobs/mnist.sbatch", "--epochs", "1")
    log = jobs.log_of(workspace, job_id)
    tasks = {}

    def laid_out(job: Job) -> bool:
        tasks.update(cluster.slurm.layout(job_id))
        return bool(tasks)

    cluster.slurm.wait(job_id, 60, until=laid_out)
    cluster.slurm.wait_completed(job_id, 400, log=log.read_text)
    assert tasks == {0: "node-1", 1: "node-2"}
    assert cluster.slurm.accounted_layout(job_id) == tasks
    ranks = parse_ranks(log.read_text())
    placed = placement(ranks, block_layout(tasks, ranks), job_id)
    assert sorted((item.slurm_node, item.rank.local_rank) for item in placed) == [
        ("node-1", 0),
        ("node-1", 1),
        ("node-2", 0),
        ("node-2", 1),
    ]
    summary = jobs.summary(workspace, job_id)
    assert summary["world_size"] == 4
    assert summary["data"]["test"] == 10_000
    assert summary["test_accuracy"] > ACCURACY


def test_two_torchruns_on_a_node_are_refused_at_once(cluster, workspace, digits):
    job_id = cluster.slurm.submit("--nodes=1", "--ntasks-per-node=2", "jobs/mnist.sbatch")
    assert cluster.slurm.wait(job_id, 60).state == "FAILED"
    log = jobs.log_of(workspace, job_id).read_text()
    assert "2 tasks on 1 nodes, but the launcher is one on each: for more ranks set RANKS_PER_NODE" in log
