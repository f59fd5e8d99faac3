"""How launchers end that start the ranks themselves: a rank fails, or the job is cancelled, and nothing is left."""

import pytest

from harness import jobs
from slurmbed.errors import JobFailed

RAY = ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=2", "launchers/ray.sbatch")
SPAWN = ("--gpus-per-node=2", "--cpus-per-task=2", "launchers/multiprocessing.sbatch")


@pytest.mark.parametrize("launch", [RAY, SPAWN], ids=["ray", "multiprocessing"])
def test_a_rank_that_fails_ends_the_job_and_nothing_is_left(pod, pod_job, failing, launch):
    with pytest.raises(JobFailed) as failed:
        pod_job(*launch, failing, timeout=300)
    assert "rank 1 gives up" in str(failed.value)
    assert jobs.left_on(pod, 2) == []


def test_a_cancelled_job_leaves_no_ray(pod, pod_workspace):
    job_id = pod.slurm.submit("--output=runs/%j.log", *RAY, *jobs.SUM, *jobs.ON)
    jobs.wait_for_log(pod, pod_workspace, job_id, '{"record": "sum"')
    log = jobs.log_of(pod_workspace, job_id).read_text()
    assert jobs.record(log, "sum")["nodes"] == {"node-1": [0, 1], "node-2": [2, 3]}
    pod.slurm.cancel(job_id)
    assert pod.slurm.wait(job_id, 60).state == "CANCELLED"
    assert jobs.left_on(pod, 2) == []


def test_spawn_refuses_a_second_node(pod_job):
    with pytest.raises(JobFailed, match="this job has 2: --nodes=1"):
        pod_job("--nodes=2", *SPAWN)
