"""A cluster of a shape: nodes of 8 H100 and 32 CPUs in name, from a file, on any machine."""

import re

import pytest

from harness.internals import ROOT
from harness.jobs import refusal, srun_by_rank
from slurmbed import BatchJob

SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What ``up`` of the pod said."""
    return []


@pytest.fixture(scope="module")
def slurm_cluster(slurm_start, heard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pod")
    config = ROOT / "clusters" / "gpu-pod.yaml"
    with slurm_start("shapes", say=heard.append, config=config, workspace=folder) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster):
    return slurm_cluster.slurm


def test_slurm_shows_the_gpus_and_cpus_of_the_file(slurm_cluster, heard):
    assert [(node.name, node.gres, node.cpus) for node in slurm_cluster.slurm.nodes()] == [
        ("node-1", "gpu:h100:8", 32),
        ("node-2", "gpu:h100:8", 32),
    ]
    shown = slurm_cluster.slurm.runner(["sinfo", "--noheader", "--format", "%P %G %f"]).check().stdout
    assert shown.split() == ["batch*", "gpu:h100:8", "pod,nvlink"]
    assert any("8 emulated GPUs of type h100 for each node of the group pod; programs compute" in s for s in heard)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--gres=gpu:h100:1"], ["node-1 1 0"]),
        (["--gres=gpu:2", "--constraint=nvlink"], ["node-1 2 0,1"]),
        (["--nodes=2", "--gpus-per-node=h100:2"], ["node-1 2 0,1", "node-2 2 0,1"]),
        (
            ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=h100:1"],
            [f"node-{n} 2 {i}" for n in (1, 2) for i in (0, 1)],
        ),
        (
            ["--nodes=2", "--ntasks-per-node=8", "--gpus-per-task=1"],
            [f"node-{n} 8 {i}" for n in (1, 2) for i in range(8)],
        ),
        (["--nodes=1", "--ntasks=4", "--gpus-per-node=4", "--gpu-bind=single:1"], [f"node-1 4 {i}" for i in range(4)]),
        (["--nodes=1", "--ntasks=2", "--gpus-per-node=4", "--gpu-bind=map_gpu:2,3"], ["node-1 4 2", "node-1 4 3"]),
        (["--nodes=1", "--ntasks=2", "--gpus-per-node=2", "--gpu-bind=none"], ["node-1 2 0,1"] * 2),
        (["--nodes=1", "--ntasks=16", "--cpus-per-task=2"], ["node-1"] * 16),
    ],
    ids=lambda value: " ".join(word for word in value if word.startswith("-")),
)
def test_tasks_see_the_gpus_they_asked_for(slurm_cluster, words, seen):
    assert srun_by_rank(slurm_cluster, SEEN, *words) == seen


def test_slurm_knows_sockets_and_cores(slurm_cluster):
    shown = slurm_cluster.slurm.runner(["sinfo", "--noheader", "--format=%z %c"]).check().stdout
    assert shown.split() == ["2:16:1", "32"]
    assert srun_by_rank(slurm_cluster, "hostname", "--sockets-per-node=2", "--cores-per-socket=16") == ["node-1"]
    assert "Requested node configuration is not available" in refusal(slurm_cluster, "--sockets-per-node=3")


@pytest.mark.parametrize("word", ["--gres=gpu:h100:9", "--gres=gpu:a100:1", "--cpus-per-task=33"])
def test_what_no_node_has_is_refused(slurm_cluster, word):
    assert re.search("Requested node configuration is not available|CPU count per node", refusal(slurm_cluster, word))


def test_two_jobs_never_share_a_gpu(slurm_submit):
    words = ["--gres=gpu:h100:4", "--gpus-per-node=4", "--gpus=4", "--gpus-per-task=4"]
    jobs = [slurm_submit("--nodes=1", "--ntasks=1", word, "--wrap", f"{SEEN}; sleep 600") for word in words]
    held = [set(gpus_of(job)) for job in jobs]
    assert set.union(*held) == {(f"node-{n}", gpu) for n in (1, 2) for gpu in range(8)}
    assert [len(each) for each in held] == [4] * 4  # 16 in all, so none is in two sets

    surplus = slurm_submit("--gres=gpu:1", "--wrap", f"{SEEN}; sleep 600")
    surplus.wait_for_state("PENDING", "Resources")
    jobs[2].cancel()
    assert set(gpus_of(surplus)) < held[2]


def gpus_of(job: BatchJob) -> list[tuple[str, int]]:
    """Node and device of each GPU that a running job sees, from its log."""
    node, _, devices = job.wait_for_output("node-").split()
    return [(node, int(device)) for device in devices.split(",")]
