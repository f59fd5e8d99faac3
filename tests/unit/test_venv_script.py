"""scripts/venv, with a `python3` that takes its time and makes an environment of nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

VENV = Path(__file__).parents[2] / "scripts" / "venv"
PYTHON = """#!/bin/bash
case "$*" in
  *'-m venv'*) mkdir -p .venv/bin; ln -s "$0" .venv/bin/python; echo made >>log ;;
  *'pip install'*) read -r line <go; echo installed >>log ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with the script alone; the installation waits until something is written to the pipe ``go``."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(VENV, tmp_path / "scripts" / "venv")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    subprocess.run(["mkfifo", tmp_path / "go"], check=True)
    return tmp_path


def start(clone: Path) -> subprocess.Popen:
    env = {"PATH": f"{clone}/bin:/usr/bin:/bin"}
    return subprocess.Popen([clone / "scripts" / "venv"], env=env, stderr=subprocess.PIPE, text=True)


def test_two_at_once_make_one(clone):
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    second = start(clone)
    assert "waiting for another make that prepares .venv" in second.stderr.readline()
    with (clone / "go").open("w") as go:
        go.write("\n")
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert (clone / "log").read_text() == "made\ninstalled\n"
    assert (clone / ".venv" / "ready").exists()
    first.stderr.close(), second.stderr.close()


def test_one_that_was_killed_holds_nobody_up(clone):
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    with (clone / "go").open("w") as go:  # opened: the installation runs
        first.kill()
        first.wait(20)
        second = start(clone)
        assert second.stderr.readline()
        go.write("\n")
    first.stderr.close()
    with (clone / "go").open("w") as go:
        go.write("\n")
    assert second.wait(20) == 0
    assert (clone / ".venv" / "ready").exists()
    second.stderr.close()
