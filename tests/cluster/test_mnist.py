"""Digits on two nodes: one torchrun on each under Slurm, two ranks under each torchrun."""

from pathlib import Path

import pytest

from harness import jobs
from harness.internals import parse_ranks
from slurmbed import Job
from slurmbed.course import data

# Training images -> test accuracy after one epoch of them; chance is 0.1. None: all of them, as the lesson on torchrun
# trains.
ACCURACY = [(16_384, 0.9), pytest.param(None, 0.975, marks=pytest.mark.matrix)]


@pytest.fixture(scope="module")
def digits(slurm_cluster) -> data.DigitsRecord:
    return data.digits(slurm_cluster)


def first(count: int, all_of_them: Path) -> Path:
    """A folder beside that of the prepared digits, with the first of its training images and the whole test set."""
    folder = all_of_them.with_name("first-digits")
    folder.mkdir(exist_ok=True)
    for file in all_of_them.glob("*-ubyte"):
        content = file.read_bytes()
        if file.name.startswith("train"):  # IDX: the count is the second number of a header of four, or of two
            header, size = (16, 28 * 28) if "images" in file.name else (8, 1)
            content = content[:4] + count.to_bytes(4, "big") + content[8 : header + count * size]
        (folder / file.name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("images", "accuracy"), ACCURACY)
def test_torchrun_on_two_nodes_learns_digits_and_every_rank_is_where_slurm_says(
    slurm, slurm_submit, workspace, digits, images, accuracy
):
    given = []
    if images:
        folder = first(images, workspace / "data" / digits.name)
        given = ["--data", str(folder.relative_to(workspace))]
    job = slurm_submit("jobs/mnist.sbatch", "--epochs", "1", *given)
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
    assert summary["data"]["train"] == (images or digits.train)
    assert summary["test_accuracy"] > accuracy


def test_two_torchruns_on_a_node_are_refused_at_once(slurm_submit, digits):
    job = slurm_submit("--nodes=1", "--ntasks-per-node=2", "jobs/mnist.sbatch")
    assert job.wait_until_over().state == "FAILED"
    said = "2 tasks on 1 nodes, but the launcher is one on each: for more ranks set RANKS_PER_NODE"
    assert said in job.stdout
