"""A job with the id of an earlier one: that one's folder and log are kept, and not mixed with the job's own."""

import os
import subprocess
from pathlib import Path

import pytest

from run import earlier

WORKSPACE = Path(earlier.__file__).resolve().parents[1]


@pytest.fixture
def job(tmp_path):
    """Run the part of a job script that all have in common, as Slurm would, in a workspace; returns its exit status."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "runs").mkdir()
    for name in ("run/earlier.py", "jobs/launch.sh"):
        (tmp_path / name).symlink_to(WORKSPACE / name)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node-1\n")
    (tmp_path / "scontrol").chmod(0o755)

    def run(prints, log="runs/1.log", **environ):
        path = f"{tmp_path}:{os.environ['PATH']}"
        known = {"PATH": path, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node-1", **environ}
        script = f"source jobs/launch.sh; echo {prints}; mkdir -p runs/1; echo {prints} >>runs/1/metrics.jsonl"
        with open(tmp_path / log, "a") as output:
            return subprocess.run(["bash", "-c", script], cwd=tmp_path, env=known, stdout=output, timeout=60).returncode

    return run


def contents(runs):
    return {str(path.relative_to(runs)): path.read_text() for path in runs.rglob("*") if path.is_file()}


def test_each_earlier_run_keeps_its_folder_and_its_log(job, tmp_path):
    assert [job(prints) for prints in ("first", "second", "third")] == [0, 0, 0]
    assert contents(tmp_path / "runs") == {
        "1-earlier-1.log": "first\n",
        "1-earlier-1/metrics.jsonl": "first\n",
        "1-earlier-2.log": "second\n",
        "1-earlier-2/metrics.jsonl": "second\n",
        "1.log": "third\n",
        "1/metrics.jsonl": "third\n",
    }


def test_a_job_that_was_queued_again_goes_on_in_its_own_folder_and_log(job, tmp_path):
    assert [job("begun"), job("continued", SLURM_RESTART_COUNT="1")] == [0, 0]
    found = contents(tmp_path / "runs")
    assert found == dict.fromkeys(("1.log", "1/metrics.jsonl"), "begun\ncontinued\n")


def test_the_log_of_one_run_and_the_folder_of_another_are_told_apart(job, tmp_path):
    (tmp_path / "runs" / "1.log").write_text("lesson\n")
    assert [job("second", log="elsewhere.log"), job("third")] == [0, 0]
    assert contents(tmp_path / "runs") == {
        "1-earlier-1.log": "lesson\n",
        "1-earlier-2/metrics.jsonl": "second\n",
        "1.log": "third\n",
        "1/metrics.jsonl": "third\n",
    }
    assert (tmp_path / "elsewhere.log").read_text() == "second\n"


def test_a_program_that_no_job_script_of_ours_started_leaves_the_log_which_may_be_its_own(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1.log").write_text("its own\n")
    earlier.set_aside(tmp_path / "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-earlier-1", "1.log"]
