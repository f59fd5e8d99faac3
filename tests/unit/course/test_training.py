"""Following a job: what stays of earlier ones, and what Ctrl-C does."""

import io
import os

import pytest
from rich.console import Console

from slurmbed.cluster.plan import WORKSPACE
from slurmbed.course import mnist, training
from slurmbed.errors import SlurmbedError


class Client:
    """Takes note of what is cancelled."""

    def __init__(self):
        self.cancelled = []

    def cancel(self, job_id):
        self.cancelled.append(job_id)


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
def test_ctrl_c_asks_and_leaves_the_job_unless_told(monkeypatch, answer, is_terminal, cancelled):
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal, raising=False)
    client, console = Client(), Terminal(answer, is_terminal)
    training.leave_or_cancel(client, "7", console)
    assert client.cancelled == cancelled
    said = console.file.getvalue()
    assert "cancelled job" in said if cancelled else "goes on" in said


def test_what_an_earlier_job_of_the_same_id_left_is_renamed(tmp_path):
    run = training.Run(tmp_path, "2")
    for text in ("first", "second"):
        run.folder.mkdir(parents=True)
        (run.folder / "report.html").write_text(text)
        run.log_file.write_text(text)
        run.set_earlier_aside()
    runs = tmp_path / "runs"
    assert sorted(path.name for path in runs.iterdir()) == [
        "2-earlier-1",
        "2-earlier-1.log",
        "2-earlier-2",
        "2-earlier-2.log",
    ]
    assert (runs / "2-earlier-1" / "report.html").read_text() == "first"
    assert (runs / "2-earlier-2.log").read_text() == "second"


def test_a_half_written_line_of_metrics_waits_for_its_end(tmp_path):
    run = training.Run(tmp_path, "2")
    assert run.metrics() == []
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    assert run.metrics() == [{"step": 1}]


def test_progress_of_a_text_and_of_digits():
    text = {"step": 20, "train_loss": 2.0, "val_loss": None, "tokens_per_s": 1e4}
    assert training.described([text]) == ("train 2.000", "")
    assert training.described([text | {"val_loss": 1.5}, text])[0] == "train 2.000  val 1.500"
    assert training.described([text | {"val_loss": 1.5}]) == ("train 2.000  val 1.500", "10,000 tokens/s")
    digits = {"epoch": 1, "train_loss": 0.5, "test_accuracy": None, "images_per_s": 4e3}
    assert mnist.described([digits]) == ("epoch 1  train 0.500", "")
    tested = digits | {"test_accuracy": 0.9876}
    assert mnist.described([tested]) == ("epoch 1  train 0.500  accuracy 98.76%", "4,000 images/s")
    assert mnist.described([tested, digits]) == ("epoch 1  train 0.500  accuracy 98.76%", "")


@pytest.mark.parametrize("trap", ["link", "folder", "pipe"])
def test_what_a_job_put_in_the_place_of_a_file_is_not_read(tmp_path, trap):
    """The host's user may read more than the job's; and a pipe is never at its end."""
    (tmp_path / "secret" / "2").mkdir(parents=True)
    (tmp_path / "secret" / "2" / "summary.json").write_text('{"secret": 1}')
    workspace = tmp_path / "workspace"
    (workspace / "runs").mkdir(parents=True)
    if trap == "folder":
        (workspace / "runs" / "2").symlink_to(tmp_path / "secret" / "2")
    else:
        (workspace / "runs" / "2").mkdir()
        summary = workspace / "runs" / "2" / "summary.json"
        summary.symlink_to(tmp_path / "secret" / "2" / "summary.json") if trap == "link" else os.mkfifo(summary)
    with pytest.raises(SlurmbedError, match=r"a job may have put a link there|is no regular file"):
        training.Run(workspace, "2").summary()


def test_nothing_is_renamed_behind_a_link(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "2").mkdir()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "runs").symlink_to(tmp_path / "precious")
    with pytest.raises(SlurmbedError, match="a job may have put a link there"):
        training.Run(tmp_path / "workspace", "2").set_earlier_aside()
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["2"]


def test_a_run_without_results_says_where_to_look(tmp_path):
    with pytest.raises(SlurmbedError, match=r"has written no .*/runs/2/summary.json(.|\n)*its log: .*/runs/2.log"):
        training.Run(tmp_path, "2").summary()


@pytest.fixture
def jobs(tmp_path):
    """A workspace with three scripts, one of them no strategy's."""
    (tmp_path / "jobs").mkdir()
    for name, nodes, command in (
        ("tp", 2, "train.py --parallel tp"),
        ("none", 1, "train.py --parallel none"),
        ("mnist", 2, "mnist.py"),
    ):
        (tmp_path / "jobs" / f"{name}.sbatch").write_text(f'#!/bin/bash\n#SBATCH --nodes={nodes}\n{command} "$@"\n')
    return tmp_path


def test_strategies_are_those_with_a_job_script(jobs):
    assert training.strategies(jobs) == {"none": 1, "tp": 2}
    assert list(training.require_strategies(jobs, "STRATEGIES", "")) == ["none", "tp"]
    assert training.require_strategies(jobs, "STRATEGIES", "tp") == {"tp": 2}


def test_an_unknown_strategy_is_refused_with_those_that_there_are(jobs):
    with pytest.raises(training.UsageError, match=r"PARALLEL=mnist: .* no strategy 'mnist'(.|\n)*choose from none, tp"):
        training.require_strategies(jobs, "PARALLEL", "mnist")
    with pytest.raises(training.UsageError, match="STRATEGIES=none,,tp: there is no strategy ''"):
        training.require_strategies(jobs, "STRATEGIES", "none,,tp")


def test_every_strategy_of_the_project_has_a_job_script_that_names_it():
    known = training.strategies(WORKSPACE)
    assert {"none": 1, "ddp": 2, "tp": 2, "hybrid": 4}.items() <= known.items()


def test_the_command_to_repeat_a_run_can_be_pasted():
    words = training.again_command("train", "PARALLEL=ddp", "NODES=3", steps="9", text="my text.txt")
    assert words == "make train PARALLEL=ddp NODES=3 STEPS=9 'TEXT=my text.txt'"
