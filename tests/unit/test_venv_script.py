"""scripts/venv, with a `python3` that takes its time and makes an environment of nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurmbed.wait import Pending, wait_until

VENV = Path(__file__).parents[2] / "scripts" / "venv"
PYTHON = f"""#!/bin/bash
case "$*" in
  '-m venv .venv') mkdir -p .venv/bin; ln -s "$0" .venv/bin/python; echo made >>log ;;
  *'pip install'*)
    touch installing; until [[ -e go ]]; do sleep 0.05; done; rm installing
    shift 4; echo "$*" >>log ;;
  '- figures' | '- test') printf 'a tool of %s' "$2" | tr ' ' '-' ;;
  -) exec {sys.executable} "$@" ;;
esac
"""
FIRST = ["made", "--editable ."]


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


def start(clone: Path, *words: str) -> subprocess.Popen:
    env = {"PATH": f"{clone}/bin:/usr/bin:/bin"}
    return subprocess.Popen([clone / "scripts" / "venv", *words], env=env, stderr=subprocess.PIPE, text=True)


def finish(clone: Path, *words: str) -> str:
    """What one says that nothing holds up."""
    (clone / "go").touch()
    script = start(clone, *words)
    said = script.communicate(timeout=60)[1]
    assert script.returncode == 0, said
    return said


def done(clone: Path) -> list[str]:
    return (clone / "log").read_text().splitlines()


def make_older(*marks: Path) -> None:
    """As they are once pyproject.toml is newer."""
    for mark in marks:
        assert mark.exists()
        subprocess.run(["touch", "-d", "2001-01-01", mark], check=True)


def test_a_user_gets_the_package_alone(clone):
    finish(clone)
    assert done(clone) == FIRST
    assert finish(clone) == ""
    assert done(clone) == FIRST


def test_an_extra_is_added_and_nothing_else_is_touched(clone):
    """Another make may be running slurmbed from there."""
    finish(clone)
    (clone / ".venv" / "kept").touch()
    finish(clone, "test")
    assert done(clone) == [*FIRST, "a-tool-of-test"]
    finish(clone, "figures")
    assert done(clone) == [*FIRST, "a-tool-of-test", "a-tool-of-figures"]
    assert finish(clone, "test") == ""
    assert (clone / ".venv" / "kept").exists()


def test_what_a_developer_has_is_kept_when_pyproject_changes(clone):
    finish(clone, "test")
    (clone / ".venv" / "kept").touch()
    make_older(clone / ".venv" / "ready", clone / ".venv" / "has-test")
    assert "bringing .venv up to date" in finish(clone)
    assert done(clone)[3:] == ["--editable ."]
    finish(clone, "test")
    assert done(clone)[3:] == ["--editable .", "a-tool-of-test"]
    assert (clone / ".venv" / "kept").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(clone):
    finish(clone)
    make_older(clone / ".venv" / "ready")
    (clone / ".venv" / "bin" / "python").unlink()
    finish(clone)
    assert done(clone) == FIRST * 2


def test_two_at_once_make_one(clone):
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    second = start(clone, "test")
    assert "waiting for another make that prepares .venv" in second.stderr.readline()
    (clone / "go").touch()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert done(clone) == [*FIRST, "a-tool-of-test"]
    for each in (first, second):
        each.stderr.close()


def test_one_that_was_killed_holds_nobody_up(clone):
    """What it had started goes on for a while: the next one waits for that, and makes the environment anew."""
    first = start(clone)
    assert "preparing .venv" in first.stderr.readline()
    wait_until(lambda: installs(clone), what="the installation has begun", timeout=60)
    first.kill()
    first.wait(20)
    second = start(clone)
    assert "waiting for another make" in second.stderr.readline()
    (clone / "go").touch()
    assert second.wait(60) == 0
    assert done(clone) == FIRST * 2
    assert (clone / ".venv" / "ready").exists()
    for each in (first, second):
        each.stderr.close()


def installs(clone: Path) -> None:
    if not (clone / "installing").exists():
        raise Pending("not yet")


def test_a_folder_with_a_colon_is_refused(clone, tmp_path_factory):
    """Python's venv refuses it with a message that says nothing of what to do."""
    odd = tmp_path_factory.mktemp("a:b") / "clone"
    shutil.copytree(clone, odd)
    script = start(odd)
    assert "in a folder with a colon in its name: move" in script.communicate(timeout=60)[1]
    assert script.returncode == 1
