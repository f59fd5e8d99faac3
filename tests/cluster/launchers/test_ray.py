"""How launchers end that start the ranks themselves: a rank fails, or the job is cancelled, and nothing is left."""

import pytest

from harness import jobs
from slurmbed.errors import JobFailed

RAY = ("--nodes=2", "--gpus-per-node=2", "--cpus-per-task=2", "launchers/ray.sbatch")
SPAWN = ("--gpus-per-node=2", "--cpus-per-task=2", "launchers/multiprocessing.sbatch")


@pytest.mark.parametrize("launch", [RAY, SPAWN], ids=["ray", "multiprocessing"])
def test_a_rank_that_fails_ends_the_job_and_nothing_is_left(slurm_cluster, slurm, failing, launch):
    with pytest.raises(JobFailed) as failed:
        slurm.run(*launch, failing)
    assert "rank 1 gives up" in str(failed.value)
    assert jobs.left_on(slurm_cluster, 2) == []


def test_a_cancelled_job_leaves_no_ray(slurm_cluster, slurm_submit):
    job = slurm_submit(*RAY, *jobs.SUM, *jobs.ON)
    log = job.wait_for_output('{"record": "sum"')
    assert jobs.record(log, "sum")["nodes"] == {"node-1": [0, 1], "node-2": [2, 3]}
    job.cancel()
    assert job.wait_until_over().state == "CANCELLED"
    assert jobs.left_on(slurm_cluster, 2) == []


def test_spawn_refuses_a_second_node(slurm):
    with pytest.raises(JobFailed, match="this job has 2: --nodes=1"):
        slurm.run("--nodes=2", *SPAWN)
