"""Arrays and heterogeneous jobs: every task and component counts, and has its own state, log and placement."""

import pytest

from slurmbed.errors import JobFailed, SlurmbedError

LOG = "--output=runs/%A-%a.log"
TWO_COMPONENTS = ("--ntasks=1", "--wrap", "srun --het-group=0,1 --label hostname", ":", "--ntasks=1")


@pytest.fixture
def submit(cluster):
    """Submit a job; cancelled in the end, if it is not over."""
    job_ids = []

    def submit(*arguments: str) -> str:
        job_ids.append(cluster.slurm.submit(*arguments))
        return job_ids[-1]

    yield submit
    for job_id in job_ids:
        cluster.slurm.cancel(job_id)
        cluster.slurm.wait(job_id, 60)


def test_an_array_is_waited_for_to_its_last_task(cluster, workspace, submit):
    array = submit("--array=0-3%2", LOG, "--wrap", "sleep 1; echo task $SLURM_ARRAY_TASK_ID")
    job = cluster.slurm.wait_completed(array, 120)
    assert job.id == f"{array}_0"
    jobs = cluster.slurm.jobs(array)
    assert [job.id for job in jobs] == [f"{array}_{task}" for task in range(4)]
    assert [job.stdout for job in jobs] == [f"/workspace/runs/{array}-{task}.log" for task in range(4)]
    logs = [(workspace / "runs" / f"{array}-{task}.log").read_text() for task in range(4)]
    assert logs == [f"task {task}\n" for task in range(4)]


def test_an_array_of_which_one_task_fails_has_failed(cluster, submit):
    array = submit("--array=0-2", "--output=/dev/null", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 1 ? 3 : 0))")
    with pytest.raises(JobFailed, match=rf"job {array}_1 ended FAILED, exit code 3:0 .*not completed: 1 of 3"):
        cluster.slurm.wait_completed(array, 120)
    assert [job.state for job in cluster.slurm.jobs(array)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert cluster.slurm.job(array).id == f"{array}_1"
    assert cluster.slurm.job(f"{array}_2").state == "COMPLETED"
    assert [(row.id, row.state) for row in cluster.slurm.accounting(f"{array}_1")] == [(f"{array}_1", "FAILED")]


@pytest.mark.newest
def test_tasks_that_have_not_started_are_one_record(cluster, submit):
    array = submit("--hold", "--array=0-9%3", "--output=/dev/null", "--wrap", "true")
    (waiting,) = cluster.slurm.jobs(array)
    assert (waiting.id, waiting.state, waiting.reason) == (f"{array}_[0-9%3]", "PENDING", "JobHeldUser")
    assert cluster.slurm.job(f"{array}_4") == waiting
    with pytest.raises(SlurmbedError, match=f"no job {array}_10"):
        cluster.slurm.job(f"{array}_10")
    cluster.slurm.cancel(array)
    assert cluster.slurm.wait(array, 60).state == "CANCELLED"


def test_a_task_of_an_array_has_its_own_layout(cluster, submit):
    array = submit("--array=1-2", "--nodes=2", "--output=/dev/null", "--wrap", "srun --ntasks=2 true")
    cluster.slurm.wait_completed(array, 120)
    for task in (1, 2):
        assert cluster.slurm.accounted_layout(f"{array}_{task}") == {0: "node-1", 1: "node-2"}


@pytest.mark.newest
def test_a_heterogeneous_job_is_its_components(cluster, workspace, submit):
    job_id = submit("--output=runs/%j.log", "--exclusive", *TWO_COMPONENTS, "--exclusive")
    cluster.slurm.wait_completed(job_id, 120, log=(workspace / "runs" / f"{job_id}.log").read_text)
    jobs = cluster.slurm.jobs(job_id)
    assert [(job.id, job.state, job.nodelist) for job in jobs] == [
        (f"{job_id}+0", "COMPLETED", "node-1"),
        (f"{job_id}+1", "COMPLETED", "node-2"),
    ]
    assert cluster.slurm.accounted_layout(job_id) == {0: "node-1", 1: "node-2"}
    log = (workspace / "runs" / f"{job_id}.log").read_text()
    assert sorted(log.splitlines()) == ["0: node-1", "1: node-2"]


def test_a_heterogeneous_job_that_fails_is_told_with_its_log(cluster, workspace, submit):
    job_id = submit("--output=runs/%j.log", "--wrap", "echo on fire; exit 5", ":", "--ntasks=1")
    with pytest.raises(JobFailed, match=rf"job {job_id}\+0 ended FAILED, exit code 5:0(.|\n)*on fire"):
        cluster.slurm.wait_completed(job_id, 120, log=(workspace / "runs" / f"{job_id}.log").read_text)
