"""A job as an object, over answers that Slurm might give."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from slurmbed.errors import JobFailed, PlacementError, WaitTimeout
from slurmbed.process import Result, run
from slurmbed.slurm.batch import BatchJob, assert_separate_nodes


def job_with(layout: dict[int, str], exit_code: str = "0:0", stdout: str = "one\ntwo\n") -> BatchJob:
    record = SimpleNamespace(stdout="/workspace/out.log", exit_code=exit_code, state="COMPLETED", raw_id="7")
    return BatchJob(
        SimpleNamespace(
            job=lambda _: record,
            runner=lambda argv: Result(tuple(argv), 0, stdout, ""),
            accounted_layout=lambda _: layout,
        ),
        "7",
    )


def test_ranks_on_separate_nodes():
    assert assert_separate_nodes(job_with({0: "node-1", 1: "node-3"})) == {0: "node-1", 1: "node-3"}


def test_ranks_that_share_a_node_are_named_with_the_end_of_the_output():
    with pytest.raises(AssertionError, match=r"ranks share node-1: rank 0 on node-1, rank 1 on node-1\n +one\n +two"):
        assert_separate_nodes(job_with({0: "node-1", 1: "node-1"}))


def test_one_rank_proves_nothing():
    with pytest.raises(AssertionError, match="job 7 has one rank"):
        assert_separate_nodes(job_with({0: "node-1"}))


def test_ranks_of_a_torchrun_on_each_node_are_counted_and_not_slurms_tasks():
    record = {"record": "rank", "world_size": 4, "job_id": "7", "shard": ""}
    places = [(0, 0, "node-2"), (1, 1, "node-2"), (2, 0, "node-1"), (3, 1, "node-1")]
    fields = [{"rank": rank, "local_rank": local, "host": node} for rank, local, node in places]
    log = "\n".join(json.dumps(record | each) for each in fields)
    job = job_with({0: "node-1", 1: "node-2"}, stdout=log)
    assert job.placement == {0: "node-2", 1: "node-2", 2: "node-1", 3: "node-1"}
    with pytest.raises(AssertionError, match="ranks share node-1, node-2"):
        assert_separate_nodes(job)
    with pytest.raises(PlacementError, match="the log and Slurm disagree"):
        _ = job_with({0: "node-1", 1: "node-3"}, stdout=log).placement


@pytest.mark.parametrize(("recorded", "status"), [("0:0", 0), ("3:0", 3), ("0:15", 143)])
def test_the_exit_status_is_a_shells(recorded, status):
    assert job_with({}, recorded).exit_code == status


@pytest.fixture
def writing(tmp_path) -> BatchJob:
    """A job whose output is a file here, and whose record a test may change: job.slurm.record."""
    record = SimpleNamespace(stdout=str(tmp_path / "out log"), state="RUNNING", reason="None", is_over=False)
    slurm = SimpleNamespace(record=record, job=lambda _: record, runner=partial(run, timeout=60))
    return BatchJob(slurm, "7")


def test_output_is_waited_for_where_the_job_writes_it(writing, tmp_path):
    later = run(
        ["sh", "-c", '(sleep 0.3; echo "it is [there]" >>"$1") >/dev/null 2>&1 &', "sh", writing.record.stdout],
        timeout=9,
    )
    assert later.ok
    assert writing.wait_for_output("is [there]", timeout=60) == "it is [there]\n"


def test_the_output_of_an_arrays_task_is_looked_for_where_it_is_once_the_task_runs(writing, monkeypatch):
    """Until then Slurm gives the array's number, 4294967294, for %a."""
    monkeypatch.setattr("slurmbed.slurm.batch.LOOK", 0)
    running = writing.record
    file = running.stdout
    pending = SimpleNamespace(stdout=f"{file}-4294967294", is_over=False)
    records = [pending]
    writing.slurm.job = lambda _: records.pop() if records else running
    with open(file, "w") as output:
        output.write("task 1\n")
    assert writing.wait_for_output("task 1", timeout=60) == "task 1\n"


def test_what_an_ended_job_wrote_last_counts_and_what_it_did_not_is_said_with_the_end_of_its_output(writing):
    writing.record.is_over = True
    with open(writing.record.stdout, "w") as file:
        file.write("one\ntwo\n")
    assert writing.wait_for_output("two", timeout=60) == "one\ntwo\n"
    with pytest.raises(JobFailed, match=r"job 7 ended without 'three' in its output\n +one\n +two"):
        writing.wait_for_output("three", timeout=60)


def test_a_job_that_ends_in_another_state_than_the_one_waited_for_is_said_with_its_output(writing):
    record = writing.record
    with open(record.stdout, "w") as file:
        file.write("on fire\n")

    def wait(job_id, timeout, until):
        assert until(record) == (record.state == "RUNNING" and record.reason == "None")
        return record

    writing.slurm.wait = wait
    assert writing.wait_for_state("RUNNING", "None") is record
    record.state, record.id, record.exit_code = "FAILED", "7", "3:0"
    with pytest.raises(JobFailed, match=r"job 7 ended FAILED, exit code 3:0(.|\n)*on fire"):
        writing.wait_for_state("RUNNING", "None")


def test_a_text_that_does_not_come_is_waited_for_no_longer_than_the_timeout(writing, monkeypatch):
    monkeypatch.setattr("slurmbed.slurm.batch.LOOK", 0)
    with pytest.raises(WaitTimeout, match="'nothing' in the output of job 7: not after 0 s"):
        writing.wait_for_output("nothing", timeout=0)
