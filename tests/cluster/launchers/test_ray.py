"""Launchers that start the ranks themselves, on the pod: what they leave, and how they end when a rank fails."""

import pytest

from slurmbed.errors import JobFailed
from slurmbed.slurm.placement import parse_ranks

RAY = ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=2", "launchers/ray.sbatch")
SPAWN = ("--gpus-per-node=2", "--cpus-per-task=2", "launchers/multiprocessing.sbatch")


def left(pod) -> list[str]:
    """What the nodes still run for alice, and what of Ray's is in their /tmp."""
    look = ["bash", "-c", "ps -o args= -u alice; find /tmp -maxdepth 1 -name 'ray*'"]
    nodes = [node.name for node in pod.slurm.nodes()]
    found = [pod.compose.exec(node, look).check().stdout for node in nodes]
    return [line for text in found for line in text.splitlines()]


def test_ray_starts_so_many_ranks_on_each_node_and_leaves_nothing(pod, pod_job):
    _, log = pod_job(*RAY, timeout=300)
    assert [rank.host for rank in parse_ranks(log)] == ["node-1", "node-1", "node-2", "node-2"]
    assert "all right" in log
    assert left(pod) == []


def test_a_rank_that_fails_ends_rays_job_and_nothing_is_left(pod, pod_job, failing):
    with pytest.raises(JobFailed) as failed:
        pod_job(*RAY, failing, timeout=300)
    assert "rank 1 gives up" in str(failed.value)
    assert left(pod) == []


def test_a_cancelled_job_leaves_no_ray(pod, pod_workspace):
    job_id = pod.slurm.submit("--output=runs/%j.log", *RAY, "launchers/distributed_sum.py", "--seconds", "600")
    log = pod_workspace / "runs" / f"{job_id}.log"
    pod.slurm.wait(job_id, 300, until=lambda _: log.exists() and '{"record": "sum"' in log.read_text())
    pod.slurm.cancel(job_id)
    assert pod.slurm.wait(job_id, 60).state == "CANCELLED"
    assert left(pod) == []


def test_a_rank_that_fails_ends_the_others_that_were_spawned(pod, pod_job, failing):
    with pytest.raises(JobFailed) as failed:
        pod_job(*SPAWN, failing, timeout=180)
    assert "rank 1 gives up" in str(failed.value)
    assert left(pod) == []


def test_spawn_refuses_a_second_node(pod_job):
    with pytest.raises(JobFailed, match="this job has 2: --nodes=1"):
        pod_job("--nodes=2", *SPAWN, timeout=180)
