"""GPUs: emulated ones through Slurm, the host's as far as a machine without any can show, NCCL where there is one."""

import re
from contextlib import suppress

import pytest

from harness import clusters, engine, internals, job_images, jobs
from harness.names import NAME
from slurmbed import Cluster
from slurmbed.course import data
from slurmbed.course.runs import STRATEGY_NAMES
from slurmbed.errors import SlurmbedError, UsageError

GPU_NAME = f"{NAME}-gpu"
SMALL = {"cpus": 2, "memory": "512M"}
SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


def test_slurm_hands_out_emulated_gpus(pod):
    assert [node.gres for node in pod.slurm.nodes()] == ["gpu:emulated:8"] * 4
    assert jobs.srun_by_rank(pod, SEEN, "--nodes=2", "--gpus-per-node=2") == ["node-1 2 0,1", "node-2 2 0,1"]
    each_its_own = ["node-1 2 0", "node-1 2 1", "node-2 2 0", "node-2 2 1"]
    assert jobs.srun_by_rank(pod, SEEN, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1") == each_its_own
    assert jobs.srun_by_rank(pod, SEEN, "--gres=gpu:emulated:1") == ["node-1 1 0"]
    assert jobs.srun_by_rank(pod, SEEN) == ["node-1"]
    refused = pod.slurm.runner(["srun", "--gpus-per-node=9", "true"])
    assert "Requested node configuration is not available" in refused.stderr
    with pytest.raises(UsageError, match="the existing nodes were made with GPUS=emulated:8"):
        clusters.make_cluster(pod.name, gpus=0).up()


def test_nvidia_smi_lists_the_gpus_of_the_job(pod):
    smi = "nvidia-smi --query-gpu=index,memory.total --format=csv"
    assert jobs.srun_by_rank(pod, smi, "--gres=gpu:emulated:1") == ["index, memory.total [MiB]", "0, 16384 MiB"]
    each_its_own = jobs.srun_by_rank(pod, f"{smi},noheader,nounits", "--ntasks=2", "--gpus-per-task=1")
    assert each_its_own == ["0, 16384", "1, 16384"]
    listed = jobs.srun_by_rank(pod, "nvidia-smi -L", "--gpus-per-node=2")
    assert [re.sub("GPU-[0-9a-f-]{36}", "ID", line) for line in listed] == [
        f"GPU {i}: Emulated GPU (UUID: ID)" for i in range(2)
    ]
    table = jobs.srun_by_rank(pod, "nvidia-smi", "--gpus-per-node=2")
    assert [line.split()[1] for line in table if "Emulated GPU" in line] == ["0", "1"]
    assert jobs.srun_by_rank(pod, "nvidia-smi || echo ended $?") == ["No devices were found", "ended 6"]
    assert len(engine.execute(pod, "node-1", ["nvidia-smi", "-L"]).check().stdout.splitlines()) == 8


def test_a_node_more_has_as_many_emulated_gpus(pod):
    try:
        grown = clusters.make_cluster(pod.name, nodes=5).scale()
        assert [(node.name, node.gres) for node in grown] == [(f"node-{i}", "gpu:emulated:8") for i in range(1, 6)]
        assert jobs.srun_by_rank(pod, SEEN, "--nodelist=node-5", "--gpus-per-node=1") == ["node-5 1 0"]
    finally:
        clusters.make_cluster(pod.name, nodes=4).scale()


def test_a_container_has_the_gpus_of_its_step(image, slurm_start, tmp_path):
    internals.require_containers_in_jobs(image)
    shape = {
        "nodes": 1,
        "gpus": "emulated:h100:2",
        "containers": True,
        "workspace": clusters.copy_of_workspace(tmp_path),
    }
    with slurm_start("gpu-containers", **shape, **SMALL) as cluster:
        name = f"{cluster.name}-python"
        job_images.make(cluster, name, job_images.PYTHON)
        of_image = f"--container-image={job_images.save(cluster, name, 'python.tar')}"
        engine.docker("rmi", name)
        shown = "ls /dev/*gpu*; echo $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES; nvidia-smi -L"
        plain = jobs.srun_by_rank(cluster, shown, "--gpus-per-node=1")
        assert plain[:3] == ["/dev/emulated-gpu0", "/dev/emulated-gpu1", "1 0"]
        assert plain[3].startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")
        assert jobs.srun_by_rank(cluster, shown, "--gpus-per-node=1", of_image) == plain


def test_gpus_of_the_host_are_counted_from_0_in_each_node(slurm_start, monkeypatch):
    """Device files with the names that the toolkit gives stand in for GPUs: node-2 has the host's numbers 2 and 3."""
    internals.pretend_gpus(monkeypatch, 4)
    internals.give_stand_ins(monkeypatch)
    with slurm_start("gpu", nodes=2, gpus=2, **SMALL) as cluster:
        declared = engine.execute(cluster, "node-2", ["cat", "/etc/slurm/gres.conf"]).check().stdout
        assert declared == "Name=gpu File=/dev/nvidia2,/dev/nvidia3\n"
        assert [node.gres for node in cluster.slurm.nodes()] == ["gpu:2"] * 2
        each_its_own = ["node-1 2 0", "node-1 2 1", "node-2 2 0", "node-2 2 1"]
        assert jobs.srun_by_rank(cluster, SEEN, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1") == each_its_own


def test_each_node_reserves_a_gpu_that_no_other_has(image, monkeypatch):
    """Containers with GPUs can be made, though not started, where there is none."""
    internals.pretend_gpus(monkeypatch, 4)
    cluster = clusters.make_cluster(GPU_NAME, nodes=3, gpus=1, retain=True, **SMALL)
    try:
        with suppress(SlurmbedError):
            cluster.up()
        first = reserved(cluster)
        assert first == {"node-1": ["0"], "node-2": ["1"], "node-3": ["2"]}
        assert engine.inspect(cluster, "login")["HostConfig"]["DeviceRequests"] is None
        engine.remove(GPU_NAME, ["node-1"])
        with suppress(SlurmbedError):
            clusters.make_cluster(GPU_NAME, nodes=4, retain=True).up()
        assert reserved(cluster) == {"node-1": ["0"], "node-2": ["1"], "node-3": ["2"], "node-4": ["3"]}
    finally:
        cluster.clean()


def reserved(cluster: Cluster) -> dict[str, list[str]]:
    """The host's GPUs that each node asks the engine for, by nvidia-smi's numbers."""
    found = {}
    for service in engine.states(cluster.name):
        if service.startswith("node"):
            (request,) = engine.inspect(cluster, service)["HostConfig"]["DeviceRequests"]
            assert (request["Driver"], request["Capabilities"]) == ("nvidia", [["gpu"]])
            found[service] = request["DeviceIDs"]
    return found


@pytest.fixture(scope="session")  # comes before the other fixtures of its test, which need not be made then
def host_gpus() -> int:
    return internals.host_gpus(clusters.make_cluster(GPU_NAME))


def test_every_strategy_trains_by_nccl_with_a_gpu_for_each_node(host_gpus, slurm_start, tmp_path):
    nodes = min(2, host_gpus)
    own = clusters.copy_of_workspace(tmp_path)  # its job ids would meet another cluster's
    with slurm_start("gpu", nodes=nodes, cpus=2, gpus=1, torch="pypi", workspace=own) as cluster:
        words = ("--text", data.text(cluster).path, "--steps", "20", "--backend", "nccl")
        losses = {}
        for name in STRATEGY_NAMES:
            ranks = 1 if name == "none" else nodes
            flags = ("--tp-size", str(nodes), "--amp", "off")
            asked = (f"--nodes={ranks}", "--ntasks-per-node=1", "--gpus-per-node=1", f"jobs/{name}.sbatch")
            job = cluster.slurm.run(*asked, *words, *flags, timeout=600)
            summary = jobs.summary(own, job.id)
            assert (summary["steps"], summary["world_size"]) == (20, ranks), name
            assert name == "none" or "nccl" in summary["transports"], name
            losses[name] = summary["val_loss"]
    assert losses == pytest.approx(dict.fromkeys(STRATEGY_NAMES, losses["none"]), abs=5e-3)
