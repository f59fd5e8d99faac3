"""scripts/venv, with a `python3` that takes its time and makes an environment of nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from slurmbed.wait import Pending, wait_until

VENV = Path(__file__).parents[2] / "scripts" / "venv"
PYTHON = """#!/bin/bash
case "$*" in
  *'-m venv'*) mkdir -p .venv/bin; ln -s "$0" .venv/bin/python; echo made >>log ;;
  *'pip install'*) touch installing; until [[ -e go ]]; do sleep 0.05; done; echo installed >>log ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with the script alone; an installation waits until there is a file ``go``."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(VENV, tmp_path / "scripts" / "venv")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return tmp_path


def start(clone: Path) -> subprocess.Popen:
    env = {"PATH": f"{clone}/bin:/usr/bin:/bin"}
    return subprocess.Popen([clone / "scripts" / "venv"], env=env, stderr=subprocess.PIPE, text=True)


def test_two_at_once_make_one(clone):
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    second = start(clone)
    assert "waiting for another make that prepares .venv" in second.stderr.readline()
    (clone / "go").touch()
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert (clone / "log").read_text() == "made\ninstalled\n"
    assert (clone / ".venv" / "ready").exists()
    for each in (first, second):
        each.stderr.close()


def test_one_that_was_killed_holds_nobody_up(clone):
    """What it had started goes on for a while: the next one waits for that, and makes the environment anew."""
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    wait_until(lambda: installs(clone), what="the installation has begun", timeout=20)
    first.kill()
    first.wait(20)
    second = start(clone)
    assert "waiting for another make" in second.stderr.readline()
    (clone / "go").touch()
    assert second.wait(20) == 0
    assert (clone / "log").read_text() == "made\ninstalled\nmade\ninstalled\n"
    assert (clone / ".venv" / "ready").exists()
    for each in (first, second):
        each.stderr.close()


def installs(clone: Path) -> None:
    if not (clone / "installing").exists():
        raise Pending("not yet")
