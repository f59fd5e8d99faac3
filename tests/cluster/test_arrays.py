"""Arrays and heterogeneous jobs: every task and component counts, and has its own state, log and placement."""

import pytest

from slurmbed import BatchJob, JobFailed, SlurmbedError

LOG = "--output=runs/%A-%a.log"
TWO_COMPONENTS = ("--ntasks=1", "--wrap", "srun --het-group=0,1 --label hostname", ":", "--ntasks=1")


def test_an_array_is_waited_for_to_its_last_task(slurm, slurm_submit):
    array = slurm_submit("--array=0-3%2", LOG, "--wrap", "sleep 1; echo task $SLURM_ARRAY_TASK_ID")
    assert array.wait().id == f"{array.id}_0"
    jobs = slurm.jobs(array.id)
    assert [job.id for job in jobs] == [f"{array.id}_{task}" for task in range(4)]
    assert [job.stdout for job in jobs] == [f"/workspace/runs/{array.id}-{task}.log" for task in range(4)]
    logs = [BatchJob(slurm, job.id).stdout for job in jobs]
    assert logs == [f"task {task}\n" for task in range(4)]


def test_an_array_of_which_one_task_fails_has_failed(slurm, slurm_submit):
    array = slurm_submit("--array=0-2", "--output=/dev/null", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 1 ? 3 : 0))")
    with pytest.raises(JobFailed, match=rf"job {array.id}_1 ended FAILED, exit code 3:0 .*not completed: 1 of 3"):
        array.wait()
    assert [job.state for job in slurm.jobs(array.id)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert array.record.id == f"{array.id}_1"
    assert slurm.job(f"{array.id}_2").state == "COMPLETED"
    assert [(row.id, row.state) for row in slurm.accounting(f"{array.id}_1")] == [(f"{array.id}_1", "FAILED")]


@pytest.mark.newest
def test_tasks_that_have_not_started_are_one_record(slurm, slurm_submit):
    array = slurm_submit("--hold", "--array=0-9%3", "--output=/dev/null", "--wrap", "true")
    (waiting,) = slurm.jobs(array.id)
    assert (waiting.id, waiting.state, waiting.reason) == (f"{array.id}_[0-9%3]", "PENDING", "JobHeldUser")
    assert slurm.job(f"{array.id}_4") == waiting
    with pytest.raises(SlurmbedError, match=f"no job {array.id}_10"):
        slurm.job(f"{array.id}_10")
    array.cancel()
    assert array.wait_until_over().state == "CANCELLED"


def test_a_task_of_an_array_has_its_own_layout(slurm, slurm_submit):
    array = slurm_submit("--array=1-2", "--nodes=2", "--output=/dev/null", "--wrap", "srun --ntasks=2 true")
    array.wait()
    for task in (1, 2):
        assert BatchJob(slurm, f"{array.id}_{task}").placement == {0: "node-1", 1: "node-2"}


@pytest.mark.newest
def test_a_heterogeneous_job_is_its_components(slurm, slurm_submit):
    whole = slurm_submit("--exclusive", *TWO_COMPONENTS, "--exclusive")
    whole.wait()
    assert [(job.id, job.state, job.nodelist) for job in slurm.jobs(whole.id)] == [
        (f"{whole.id}+0", "COMPLETED", "node-1"),
        (f"{whole.id}+1", "COMPLETED", "node-2"),
    ]
    assert whole.placement == {0: "node-1", 1: "node-2"}
    assert sorted(whole.stdout.splitlines()) == ["0: node-1", "1: node-2"]


def test_a_heterogeneous_job_that_fails_is_told_with_its_log(slurm_submit):
    whole = slurm_submit("--wrap", "echo on fire; exit 5", ":", "--ntasks=1")
    with pytest.raises(JobFailed, match=rf"job {whole.id}\+0 ended FAILED, exit code 5:0(.|\n)*on fire"):
        whole.wait()
