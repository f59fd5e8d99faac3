"""Slurm's client over a runner that answers with recorded output, changed where a test says so."""

import json
import os
from collections.abc import Callable

import pytest

from slurmbed.errors import CommandError, JobFailed, PlacementError, SlurmbedError, WaitTimeout
from slurmbed.process import Result, run
from slurmbed.slurm.client import LOOK, LOOK_FOR_MORE, Slurm, deciding
from slurmbed.slurm.records import parse_jobs

NO_ANSWER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Script:
    """Answers each command by its name: with text, or with exit status, output and errors; a list answer by answer."""

    def __init__(self, **answers):
        # bash: what squeue says once a job has changed
        self.answers, self.calls = {"bash": "changed", **answers}, []

    def __call__(self, argv) -> Result:
        self.calls.append(list(argv))
        answer = self.answers[argv[0]]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        status, out, error = answer if isinstance(answer, tuple) else (0, answer, "")
        return Result(tuple(argv), status, out, error)

    def count(self, command: str) -> int:
        return sum(call[0] == command for call in self.calls)


@pytest.fixture
def show(recorded) -> Callable[..., str]:
    """The output of scontrol for job 7, in that state and with other fields."""

    def show(state: str, **fields) -> str:
        content = json.loads(recorded("job-running.json"))
        content["jobs"][0] |= {"job_id": 7, "job_state": [state], **fields}
        return json.dumps(content)

    return show


@pytest.fixture
def unknown(recorded) -> dict[str, str]:
    """The answers if neither slurmctld nor accounting knows a job."""
    return {"scontrol": recorded("job-unknown.json"), "sacct": recorded("sacct-unknown.json")}


def exit_code(status: int) -> dict:
    return {"exit_code": {"return_code": status, "signal": {"id": 0}}}


def array_id(text: str) -> str:
    return parse_jobs(text)[0].array_job_id


def without(text: str, task: int) -> str:
    """The output without a task of an array."""
    content = json.loads(text)
    content["jobs"] = [job for job in content["jobs"] if job["array_task_id"]["number"] != task]
    return json.dumps(content)


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """A squeue that prints the lines of a file, one at each call; the last one again and again."""
    lines = tmp_path / "lines"
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/bash\nhead -n 1 {lines}\nif (($(wc -l <{lines}) > 1)); then sed -i 1d {lines}; fi\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lines


def test_a_change_of_the_job_ends_the_waiting(squeue):
    """Two looks that find the same, and one that does not."""
    squeue.write_text("7 PENDING None\n7 PENDING None\n7 RUNNING None\n")
    here = Slurm(lambda argv: run(argv, timeout=30))
    assert here.changed("7", "7 PENDING None", 20) == "7 RUNNING None"
    assert here.changed("7", "7 RUNNING None", 1) == "7 RUNNING None", "nothing changed within the second"
    assert here.changed("7", "", 20) == "7 RUNNING None", "the first look is never waited for"


def test_where_nobody_can_wait_the_job_is_asked_for_again(show):
    shown = [show("RUNNING"), show("COMPLETED")]
    assert Slurm(Script(scontrol=shown, bash=(127, "", "no bash"))).wait("7", 60).state == "COMPLETED"


def test_one_command_waits_where_slurm_is_whatever_is_waited_for(show):
    """Each look from here costs a `docker exec`; of what squeue does not say there is one a second."""
    for until, longest in ((None, LOOK), (lambda job: job.state == "RUNNING", LOOK_FOR_MORE)):
        runner = Script(scontrol=[show("PENDING"), show("RUNNING"), show("COMPLETED")], bash=["old", "new", "newer"])
        Slurm(runner).wait("7", 60, until)
        first, *others = [call[-3:] for call in runner.calls if call[0] == "bash"]
        assert first == ["7", "0", ""], "it does not wait before the job was asked for"
        seen = ["old", "new"][: len(others)]
        assert others == [["7", str(longest), each] for each in seen]
        assert runner.calls[0][0] == "bash"
        assert runner.count("scontrol") == 1 + len(others)


def test_submit_returns_the_job_id_and_passes_arguments_on():
    runner = Script(sbatch="12;cluster\n")
    assert Slurm(runner).submit("--nodes=2", "job.sbatch", "--steps", "5") == "12"
    assert runner.calls == [["sbatch", "--parsable", "--nodes=2", "job.sbatch", "--steps", "5"]]


def test_a_refused_submission_shows_sbatchs_message():
    with pytest.raises(CommandError, match="Node count specification invalid"):
        Slurm(Script(sbatch=(1, "", "sbatch: error: Node count specification invalid"))).submit("x")


def test_nodes(recorded):
    assert [node.name for node in Slurm(Script(scontrol=recorded("nodes.json"))).nodes()] == ["node-1", "node-2"]


def test_nodes_when_slurmctld_does_not_answer():
    with pytest.raises(CommandError, match="Unable to contact slurm controller"):
        Slurm(Script(scontrol=(1, "", NO_ANSWER))).nodes()


def test_wait_goes_through_requeue_to_the_end(show):
    states = [show(state) for state in ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "COMPLETED")]
    runner = Script(scontrol=states)
    assert Slurm(runner).wait("7", timeout=30).state == "COMPLETED"
    assert runner.count("sacct") == 0


def test_wait_until_something_else(show):
    runner = Script(scontrol=[show("PENDING"), show("RUNNING"), show("COMPLETED")])
    assert Slurm(runner).wait("7", timeout=30, until=lambda job: job.state == "RUNNING").state == "RUNNING"


def test_wait_is_bounded_and_says_the_last_state(show):
    with pytest.raises(WaitTimeout, match=r"job 7: not after 0 s; last status: PENDING \(Priority\)"):
        Slurm(Script(scontrol=show("PENDING", state_reason="Priority"))).wait("7", timeout=0)


def test_a_failed_job_is_told_with_state_exit_code_and_log(show):
    files = {"standard_output": "/workspace/runs/7.log", "stdout_expanded": "/workspace/runs/7.log"}
    client = Slurm(Script(scontrol=show("FAILED", **exit_code(3), **files)))
    reason = r"job 7 ended FAILED, exit code 3:0\n    boom\nwhole log: /workspace/runs/7.log"
    with pytest.raises(JobFailed, match=reason):
        client.wait_completed("7", timeout=5, log=lambda: "boom\n")


def test_a_job_that_slurmctld_forgot_comes_from_accounting(recorded, unknown):
    runner = Script(scontrol=unknown["scontrol"], sacct=recorded("sacct-failed.json"))
    job = Slurm(runner).job("7")
    assert (job.state, job.exit_code, job.nodelist, job.reason) == ("FAILED", "3:0", "node-1", "")


def test_the_last_run_of_a_requeued_job_counts(recorded, unknown):
    runner = Script(scontrol=unknown["scontrol"], sacct=recorded("sacct-requeued.json"))
    assert Slurm(runner).job("7").state == "PENDING"


def test_an_unknown_job(unknown):
    with pytest.raises(SlurmbedError, match="no job 7"):
        Slurm(Script(**unknown)).job("7")


@pytest.mark.parametrize("status", [0, 1])
def test_an_unknown_job_when_slurmctld_does_not_answer(unknown, status):
    """The JSON of scontrol, and its exit status, are then those of an unknown job."""
    answer = (status, unknown["scontrol"], NO_ANSWER)
    with pytest.raises(SlurmbedError, match=r"no job 7(.|\n)*Unable to contact slurm controller"):
        Slurm(Script(scontrol=answer, sacct=unknown["sacct"])).job("7")


def test_an_array_is_its_tasks(recorded):
    text = recorded("job-array-running.json")
    array, client = array_id(text), Slurm(Script(scontrol=text, sacct=recorded("sacct-unknown.json")))
    assert [job.id for job in client.jobs(array)] == [f"{array}_0", f"{array}_[1-2%1]"]
    assert client.job(array).state == "PENDING"
    assert [job.id for job in client.jobs(f"{array}_0")] == [f"{array}_0"]
    assert [job.id for job in client.jobs(f"{array}_2")] == [f"{array}_[1-2%1]"]


def test_a_task_that_the_array_does_not_have(recorded):
    text = recorded("job-array.json")
    with pytest.raises(SlurmbedError, match=r"no job \d+_9"):
        Slurm(Script(scontrol=text, sacct=recorded("sacct-unknown.json"))).job(f"{array_id(text)}_9")


def test_an_array_is_over_when_all_its_tasks_are(recorded):
    answers = [recorded("job-array-running.json"), recorded("job-array.json")]
    runner = Script(scontrol=answers, sacct=recorded("sacct-array.json"))
    job = Slurm(runner).wait(array_id(answers[0]), timeout=30)
    assert (job.array_task_id, job.state) == (1, "FAILED")
    assert (runner.count("scontrol"), runner.count("sacct")) == (2, 1)


def test_an_array_with_a_failed_task_has_failed(recorded):
    text = recorded("job-array.json")
    client = Slurm(Script(scontrol=text, sacct=recorded("sacct-array.json")))
    with pytest.raises(JobFailed, match=r"job \d+_1 ended FAILED, exit code 4:0 .*; not completed: 1 of 2"):
        client.wait_completed(array_id(text), timeout=5)
    assert client.wait_completed(f"{array_id(text)}_0", timeout=5).state == "COMPLETED"


def test_a_failed_task_that_slurmctld_forgot_still_counts(recorded):
    text = recorded("job-array.json")
    client = Slurm(Script(scontrol=without(text, task=1), sacct=recorded("sacct-array.json")))
    assert [job.state for job in client.jobs(array_id(text))] == ["COMPLETED", "FAILED"]
    with pytest.raises(JobFailed, match="ended FAILED, exit code 4:0"):
        client.wait_completed(array_id(text), timeout=5)


def test_a_wait_for_an_array_says_what_is_left(recorded):
    text = recorded("job-array-running.json")
    with pytest.raises(WaitTimeout, match=r"last status: \d+_\[1-2%1\] PENDING \(\w+\)"):
        Slurm(Script(scontrol=text)).wait(array_id(text), timeout=0)


def test_a_heterogeneous_job_is_its_components(recorded):
    text = recorded("job-het.json")
    first, second = parse_jobs(text)
    client = Slurm(Script(scontrol=text))
    assert client.jobs(first.het_job_id) == [first, second]
    assert client.jobs(second.id) == [second]
    assert client.wait_completed(first.het_job_id, timeout=5) == first


def test_a_component_that_failed_decides(recorded):
    content = json.loads(recorded("job-het.json"))
    content["jobs"][1] |= {"job_state": ["FAILED"], **exit_code(2)}
    text = json.dumps(content)
    with pytest.raises(JobFailed, match=r"job \d+\+1 ended FAILED, exit code 2:0; not completed: 1 of 2"):
        Slurm(Script(scontrol=text)).wait_completed(parse_jobs(text)[0].het_job_id, timeout=5)


def test_a_task_that_is_not_over_decides_before_one_that_failed(recorded):
    done, waiting = parse_jobs(recorded("job-array-running.json"))
    failed = parse_jobs(recorded("job-array.json"))[1]
    assert deciding([done, failed, waiting]) == waiting
    assert deciding([done, failed]) == failed
    assert deciding([done]) == done


def test_accounted_layout_follows_the_distribution(recorded):
    client = Slurm(Script(sacct=recorded("sacct-completed.json")))
    assert client.accounted_layout("7") == {0: "node-1", 1: "node-1", 2: "node-2"}
    assert client.accounted_layout("7", step="1") == {0: "node-1", 1: "node-2", 2: "node-1"}


def test_accounted_layout_is_of_the_last_run(recorded):
    text = recorded("sacct-completed.json")
    content, again = json.loads(text), json.loads(text)["jobs"][0]
    again["steps"][1]["nodes"]["list"] = ["node-8", "node-9"]
    content["jobs"].append(again)
    layout = Slurm(Script(sacct=json.dumps(content))).accounted_layout("7")
    assert layout == {0: "node-8", 1: "node-8", 2: "node-9"}


def test_accounted_layout_of_a_heterogeneous_job_goes_through_its_components(recorded):
    assert Slurm(Script(sacct=recorded("sacct-het.json"))).accounted_layout("8") == {0: "node-1", 1: "node-2"}


def test_accounted_layout_of_what_is_not_there(recorded):
    with pytest.raises(PlacementError, match=r"accounting has no step 7\.5"):
        Slurm(Script(sacct=recorded("sacct-completed.json"))).accounted_layout("7", step="5")
    with pytest.raises(PlacementError, match="is an array"):
        Slurm(Script(sacct=recorded("sacct-array.json"))).accounted_layout("7", step="batch")


def test_layout_of_a_running_step(recorded):
    assert Slurm(Script(sattach=recorded("layout.txt"))).layout("7") == {0: "node-1", 1: "node-1", 2: "node-2"}
    assert Slurm(Script(sattach=(1, "", "sattach: error: Invalid job id"))).layout("7") == {}
