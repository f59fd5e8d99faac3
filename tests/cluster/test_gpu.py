"""GPUs: emulated ones through Slurm, the host's as far as a machine without any can show, NCCL where there is one."""

import json
import shutil
from dataclasses import replace

import pytest

from conftest import NAME, NODES, SLICE
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import Settings
from slurmbed.errors import UsageError
from slurmbed.spec import gpus

GPU_NAME = f"{NAME}-gpu"
SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


@pytest.fixture
def start(image):
    """Bring up a small cluster beside the tests' own; removed afterwards, whatever happens."""

    def start(**settings: str) -> Cluster:
        cluster = Cluster(Settings(name=GPU_NAME, **{"nodes": "2", "cpus": "2", "memory": "512M", **settings}), print)
        cluster.up()
        return cluster

    yield start
    Cluster(Settings(name=GPU_NAME)).clean()


@pytest.fixture
def four_gpus(monkeypatch):
    """A host that says it has four."""
    monkeypatch.setattr(gpus, "listed", lambda: ["NVIDIA H200"] * 4)
    monkeypatch.setattr(gpus, "on_host", gpus.listed)


def srun(cluster: Cluster, *words: str) -> list[str]:
    """What the tasks saw, by rank: node, GPUs of the job there, CUDA_VISIBLE_DEVICES."""
    ran = cluster.slurm.runner(["srun", "--label", *words, "sh", "-c", SEEN]).check().stdout
    return [line.partition(": ")[2] for line in sorted(ran.splitlines())]


def test_slurm_hands_out_emulated_gpus(start):
    cluster = start(gpus="emulated:2")
    assert [node.gres for node in cluster.slurm.nodes()] == ["gpu:emulated:2"] * 2
    assert srun(cluster, "--nodes=2", "--gpus-per-node=2") == ["node-1 2 0,1", "node-2 2 0,1"]
    each_its_own = ["node-1 2 0", "node-1 2 1", "node-2 2 0", "node-2 2 1"]
    assert srun(cluster, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1") == each_its_own
    assert srun(cluster, "--gres=gpu:emulated:1") == ["node-1 1 0"]
    assert srun(cluster) == ["node-1"]
    refused = cluster.slurm.runner(["srun", "--gpus-per-node=3", "true"])
    assert "Requested node configuration is not available" in refused.stderr
    grown = Cluster(Settings(name=GPU_NAME, nodes="3"), print).scale()
    assert [(node.name, node.gres) for node in grown] == [(f"node-{i}", "gpu:emulated:2") for i in (1, 2, 3)]
    with pytest.raises(UsageError, match="the nodes that are there were made with GPUS=emulated:2"):
        Cluster(Settings(name=GPU_NAME, gpus="0"), print).plan()


def test_gpus_of_the_host_are_counted_from_0_in_each_node(start, four_gpus, monkeypatch):
    """Device files with the names that the toolkit gives stand in for GPUs: node-2 has the host's numbers 2 and 3."""

    def stand_ins(part):
        return {"devices": [f"/dev/null:/dev/nvidia{i}" for i in part.gpu_ids]}

    monkeypatch.setattr("slurmbed.engine.compose.gpu_devices", stand_ins)
    cluster = start(gpus="2")
    declared = cluster.compose.exec("node-2", ["cat", "/etc/slurm/gres.conf"]).check().stdout
    assert declared == "Name=gpu File=/dev/nvidia2,/dev/nvidia3\n"
    assert [node.gres for node in cluster.slurm.nodes()] == ["gpu:2"] * 2
    each_its_own = ["node-1 2 0", "node-1 2 1", "node-2 2 0", "node-2 2 1"]
    assert srun(cluster, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1") == each_its_own


def reserved(service: dict) -> list[str]:
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    return device["device_ids"]


def test_compose_takes_the_reservation_of_each_node(plan):
    slices = [replace(SLICE, gpus="1", gpu_ids=(str(number),)) for number in range(3)]
    shown = Cluster(Settings(name=GPU_NAME)).compose.with_overlay(slices, "config", "--format", "json", timeout=60)
    services = json.loads(shown.check().stdout)["services"]
    assert {name: reserved(services[name]) for name in services if name.startswith("node-")} == {
        "node-1": ["0"],
        "node-2": ["1"],
        "node-3": ["2"],
    }
    assert "deploy" not in services["login"]


def test_a_node_more_gets_a_gpu_that_no_container_has(image, plan, four_gpus):
    """Containers with GPUs can be made, though not started, where there is none."""
    slices = [replace(SLICE, gpus="1", gpu_ids=(number,)) for number in ("0", "2")]
    cluster = Cluster(Settings(name=GPU_NAME, nodes="3"), print)
    cluster.compose.env.update(plan.environment())
    try:
        cluster.compose.with_overlay(slices, "create", "--no-build", timeout=120).check()
        grown = cluster.plan().slices
    finally:
        cluster.clean()
    assert grown[:NODES] == slices
    assert (grown[2].gpus, grown[2].gpu_ids) == ("1", ("1",))


@pytest.fixture(scope="session")  # comes before the other fixtures of its test, which need not be made then
def host_gpus() -> int:
    try:
        return len(gpus.on_host())
    except UsageError as error:
        pytest.skip(error.reason)


def test_nccl_trains_on_a_gpu_for_each_node(host_gpus, start, workspace, text, tmp_path):
    nodes = min(2, host_gpus)
    own = shutil.copytree(
        workspace, tmp_path / "workspace", symlinks=True
    )  # its job ids would meet the other cluster's
    cluster = start(nodes=str(nodes), gpus="1", torch="pypi", memory="", workspace=str(own))
    words = ("jobs/tp.sbatch", "--text", text, "--steps", "20", "--backend", "nccl")
    job_id = cluster.slurm.submit(f"--nodes={nodes}", "--gpus-per-task=1", *words)
    cluster.slurm.wait_completed(job_id, 600, log=lambda: (own / "runs" / f"{job_id}.log").read_text())
    summary = json.loads((own / "runs" / job_id / "summary.json").read_text())
    assert (summary["steps"], summary["world_size"], summary["config"]["backend"]) == (20, nodes, "nccl")
