"""A cluster of a shape: nodes of 8 H100 and 32 CPUs in name, from a file, on any machine."""

import re

import pytest

from harness.clusters import running
from harness.internals import ROOT, Cluster
from harness.jobs import refusal, srun_by_rank, until
from harness.names import NAME
from slurmbed.wait import Pending, wait_until

SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What ``up`` of the pod said."""
    return []


@pytest.fixture(scope="module")
def h100_pod(image, heard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pod")
    config = ROOT / "clusters" / "gpu-pod.yaml"
    with running(f"{NAME}-shapes", heard.append, config=config, workspace=folder) as cluster:
        yield cluster


def test_slurm_shows_the_gpus_and_cpus_of_the_file(h100_pod, heard):
    assert [(node.name, node.gres, node.cpus) for node in h100_pod.slurm.nodes()] == [
        ("node-1", "gpu:h100:8", 32),
        ("node-2", "gpu:h100:8", 32),
    ]
    shown = h100_pod.slurm.runner(["sinfo", "--noheader", "--format", "%P %G %f"]).check().stdout
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
def test_tasks_see_the_gpus_they_asked_for(h100_pod, words, seen):
    assert srun_by_rank(h100_pod, SEEN, *words) == seen


def test_slurm_knows_sockets_and_cores(h100_pod):
    shown = h100_pod.slurm.runner(["sinfo", "--noheader", "--format=%z %c"]).check().stdout
    assert shown.split() == ["2:16:1", "32"]
    assert srun_by_rank(h100_pod, "hostname", "--sockets-per-node=2", "--cores-per-socket=16") == ["node-1"]
    assert "Requested node configuration is not available" in refusal(h100_pod, "--sockets-per-node=3")


@pytest.mark.parametrize("word", ["--gres=gpu:h100:9", "--gres=gpu:a100:1", "--cpus-per-task=33"])
def test_what_no_node_has_is_refused(h100_pod, word):
    assert re.search("Requested node configuration is not available|CPU count per node", refusal(h100_pod, word))


def test_two_jobs_never_share_a_gpu(h100_pod, submit):
    words = ["--gres=gpu:h100:4", "--gpus-per-node=4", "--gpus=4", "--gpus-per-task=4"]
    jobs = [submit(h100_pod, "--nodes=1", "--ntasks=1", word, script=f"{SEEN}; sleep 600") for word in words]
    held = [set(gpus_of(h100_pod, job_id)) for job_id in jobs]
    assert set.union(*held) == {(f"node-{n}", gpu) for n in (1, 2) for gpu in range(8)}
    assert [len(each) for each in held] == [4] * 4  # 16 in all, so none is in two sets

    surplus = submit(h100_pod, "--gres=gpu:1", script=f"{SEEN}; sleep 600")
    until(h100_pod, surplus, "PENDING", "Resources")
    h100_pod.slurm.cancel(jobs[2])
    assert set(gpus_of(h100_pod, surplus)) < held[2]


def gpus_of(cluster: Cluster, job_id: str) -> list[tuple[str, int]]:
    """Node and device of each GPU that a running job sees, from its log."""
    until(cluster, job_id, "RUNNING")

    def read() -> str:
        text = cluster.slurm.runner(["cat", f"{job_id}.log"]).stdout
        if not text.endswith("\n"):
            raise Pending("no whole line in the log")
        return text

    node, _, devices = wait_until(read, what=f"log of job {job_id}", timeout=30).split()
    return [(node, int(device)) for device in devices.split(",")]
