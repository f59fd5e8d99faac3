"""What the host reads of a run: only what its own job wrote, and never through a link."""

import json
import os
import time

import pytest

from slurmbed.course import runs
from slurmbed.course.runs import Run, unused_folder
from slurmbed.errors import SlurmbedError


def test_a_half_written_line_of_metrics_waits_for_its_end(tmp_path):
    run = Run(tmp_path, "2")
    assert run.metrics() == []
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n{"ste')
    assert run.metrics() == [{"step": 1}]


def test_what_an_earlier_job_of_the_same_id_left_is_not_read(tmp_path):
    folder = tmp_path / "runs" / "2"
    folder.mkdir(parents=True)
    files = [folder / "metrics.jsonl", folder / "summary.json", tmp_path / "runs" / "2.log"]
    for file in files:
        file.write_text(json.dumps({"run": "earlier"}) + "\n")
        os.utime(file, (time.time() - 60,) * 2)
    run = Run(tmp_path, "2", since=runs.now())
    assert (run.metrics(), run.log()) == ([], "")
    with pytest.raises(SlurmbedError, match="job 2 has not written"):
        run.summary()
    for file in files:
        file.write_text(json.dumps({"run": "new"}) + "\n")
    assert (run.metrics(), run.log()) == ([{"run": "new"}], '{"run": "new"}\n')
    assert run.summary() == {"run": "new"}


@pytest.mark.parametrize("trap", ["link", "folder", "pipe"])
def test_what_a_job_put_in_the_place_of_a_file_is_not_read(tmp_path, trap):
    """The host's user may read more than the job's; and reading a pipe never ends."""
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
    with pytest.raises(SlurmbedError, match=r"a job may have put a link there|is not a regular file"):
        Run(workspace, "2").summary()


def test_a_run_without_results_says_where_to_look(tmp_path):
    with pytest.raises(SlurmbedError, match=r"has not written .*/runs/2/summary.json(.|\n)*its log: .*/runs/2.log"):
        Run(tmp_path, "2").summary()


def test_a_comparison_does_not_overwrite_an_earlier_one(tmp_path):
    found = []
    for _ in range(3):
        found.append(unused_folder(tmp_path, "compare-7"))
        (tmp_path / found[-1]).mkdir(parents=True)
    assert found == ["runs/compare-7", "runs/compare-7-2", "runs/compare-7-3"]
