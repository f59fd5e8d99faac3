"""Following a job: what is printed of its progress, what of an earlier job's files, and what Ctrl-C does."""

import io
import json
import os
import time

import pytest
from rich.console import Console

from slurmbed.course import follow, mnist, train
from slurmbed.errors import JobFailed
from slurmbed.slurm.records import Job


def line(step: int, steps: int, val_loss: float | None = None) -> dict:
    return {"step": step, "steps": steps, "train_loss": 2.0, "val_loss": val_loss, "tokens_per_s": 1e4}


class Cluster:
    """A cluster that gives a job the id 1; each look at the job finds it in the next of ``states``.

    A state may be followed by what the job does meanwhile, a function.
    """

    def __init__(self, workspace, *states):
        self.path, self.states, self.slurm = workspace, list(states), self
        self.cancelled, self.waited = [], []

    def workspace(self):
        return self.path

    def submit(self, *arguments):
        return "1"

    def job(self, job_id):
        state, *does = self.states.pop(0)
        for each in does:
            each()
        reason = "Resources" if state == "PENDING" else "None"
        record = {"name": "tp", "state": state, "reason": reason, "exit_code": "0:0", "nodelist": "node-1"}
        return Job(id=job_id, raw_id=job_id, stdout="", **record)

    def changed(self, job_id, seen, seconds):
        self.waited.append((seen, seconds))
        return self.states[0][0]

    def layout(self, job_id):
        return {0: "node-1"}

    def cancel(self, job_id):
        self.cancelled.append(job_id)


@pytest.fixture
def workspace(tmp_path):
    """A workspace with what an earlier job 1 left, a minute ago."""
    folder = tmp_path / "runs" / "1"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps(line(900, 900, 1.0)) + "\n")
    (tmp_path / "runs" / "1.log").write_text("the earlier job's last words\n")
    for file in (folder / "metrics.jsonl", tmp_path / "runs" / "1.log"):
        os.utime(file, (time.time() - 60,) * 2)
    return tmp_path


def ask_at_once(monkeypatch) -> None:
    for name in ("POLL", "ASK"):
        monkeypatch.setattr(follow, name, 0)


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_progress_is_of_the_job_and_not_of_an_earlier_one_with_its_id(workspace, monkeypatch):
    ask_at_once(monkeypatch)
    folder = workspace / "runs" / "1"

    def begins():
        folder.rename(workspace / "runs" / "1-earlier-1")
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps(line(10, 20, 1.5)) + "\n")

    def ends():
        with (folder / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(line(20, 20, 1.25)) + "\n")

    states = (("PENDING",), ("RUNNING",), ("RUNNING", begins), ("COMPLETED", ends))
    console = plain_console()
    follow.complete(Cluster(workspace, *states), console, ["jobs/tp.sbatch", "--steps", "20"], train.describe)
    assert printed(console) == [
        "submitted job 1: sbatch jobs/tp.sbatch --steps 20",
        "job 1: PENDING (Resources)",
        "job 1: RUNNING",
        "step 10/20  train 2.000  val 1.500  10,000 tokens/s",
        "step 20/20  train 2.000  val 1.250  10,000 tokens/s",
    ]


def test_slurm_waits_for_a_job_that_writes_nothing(workspace, monkeypatch):
    """Instead of one question after another, each of which takes CPU time from the ranks."""
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: pytest.fail("it does not wait where Slurm is"))
    cluster = Cluster(workspace, ("PENDING",), ("RUNNING",), ("COMPLETED",))
    follow.complete(cluster, plain_console(), ["jobs/bubble.sbatch"])
    assert cluster.waited == [("", follow.LOOK), ("RUNNING", follow.LOOK)]


def test_a_job_that_was_cancelled_before_it_began_does_not_show_an_earlier_jobs_log(workspace, monkeypatch):
    ask_at_once(monkeypatch)
    with pytest.raises(JobFailed, match="job 1 ended CANCELLED") as failed:
        follow.complete(Cluster(workspace, ("PENDING",), ("CANCELLED",)), plain_console(), ["jobs/tp.sbatch"])
    assert "earlier" not in str(failed.value)


def test_the_last_lines_of_a_failed_jobs_log_are_shown(workspace, monkeypatch):
    ask_at_once(monkeypatch)

    def fails():
        (workspace / "runs" / "1.log").write_text("out of luck\n")

    with pytest.raises(JobFailed, match=r"job 1 ended FAILED(.|\n)*out of luck"):
        follow.complete(Cluster(workspace, ("FAILED", fails)), plain_console(), ["jobs/tp.sbatch"])


class Terminal(Console):
    """A terminal at which somebody types ``answer``."""

    def __init__(self, answer: str, is_terminal: bool = True):
        super().__init__(file=io.StringIO(), force_terminal=is_terminal, width=200)
        self.answer = answer

    def input(self, *_, **__):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "is_terminal", "cancelled"),
    [("c", True, ["7"]), ("Cancel", True, ["7"]), ("l", True, []), ("", True, []), ("c", False, [])],
)
def test_ctrl_c_asks_and_leaves_the_job_unless_told(monkeypatch, tmp_path, answer, is_terminal, cancelled):
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal, raising=False)
    cluster, console = Cluster(tmp_path), Terminal(answer, is_terminal)
    follow.leave_or_cancel(cluster, "7", console)
    assert cluster.cancelled == cancelled
    said = console.file.getvalue()
    assert "cancelled job" in said if cancelled else "keeps running" in said


def test_progress_of_a_text_and_of_digits():
    text = line(20, 100)
    assert train.describe([text]) == ("train 2.000", "")
    assert train.describe([text | {"val_loss": 1.5}, text])[0] == "train 2.000  val 1.500"
    assert train.describe([text | {"val_loss": 1.5}]) == ("train 2.000  val 1.500", "10,000 tokens/s")
    digits = {"epoch": 1, "train_loss": 0.5, "test_accuracy": None, "images_per_s": 4e3}
    assert mnist.describe([digits]) == ("epoch 1  train 0.500", "")
    tested = digits | {"test_accuracy": 0.9876}
    assert mnist.describe([tested]) == ("epoch 1  train 0.500  accuracy 98.76%", "4,000 images/s")
    assert mnist.describe([tested, digits]) == ("epoch 1  train 0.500  accuracy 98.76%", "")
