"""The scripts that run on the user's machine, on a PATH of what macOS has: no timeout, flock, apt-get; bash 3.2."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "scripts" / name for name in ("base-image", "engine", "venv")]
ON_MACOS = (
    *("bash", "cat", "cp", "dirname", "env", "grep", "id", "kill", "ln", "mkdir", "mktemp", "rm", "sed", "sh", "sleep"),
    *("sudo", "tail", "touch", "tr"),
)
NEWER_THAN_BASH_3 = re.compile(
    r"\b(declare|local) -[Agn]|\b(mapfile|readarray|coproc|wait -n)\b|\$\{\w+(,|\^|@)|&>>|\|&|EPOCH|exec \{"
)
# Its `pull` goes on for as long as a registry takes.
ENGINE = """
case "$*" in
  'version '*) echo 28.0 ;;
  'compose version --short') echo 2.40.3 ;;
  'image inspect '*) exit 1 ;;
  'pull '*) echo 'trixie-slim: Pulling from library/debian'; sleep 0.5 ;;
esac
"""


@pytest.fixture
def macos(tmp_path):
    """run(script, *arguments, DOCKER=.., NAME=..) with this program as docker."""
    (tmp_path / "bin").mkdir()
    for name in ON_MACOS:
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)

    def program(name: str, text: str) -> None:
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(script: Path, *arguments: str, docker: str = ENGINE, **environment: str) -> subprocess.CompletedProcess:
        program("docker", docker)
        env = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), **environment}
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run([script, *arguments], cwd=tmp_path, env=env, timeout=120, **streams)

    program("uname", "echo Darwin")
    program("python3", f'exec {sys.executable} "$@"')  # slurmbed needs one
    run.program = program
    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_nothing_that_bash_3_does_not_know(script):
    assert NEWER_THAN_BASH_3.findall(script.read_text()) == []
    assert NEWER_THAN_BASH_3.search('local -n x; "${set[@]}" ${name^^}')


def test_an_engine_that_answers(macos):
    done = macos(ROOT / "scripts" / "engine")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_engine_that_does_not(macos):
    done = macos(ROOT / "scripts" / "engine", docker="exit 1")
    assert done.returncode == 1
    assert "no Docker engine answers; start Docker Desktop" in done.stderr


def test_a_base_image_that_is_pulled(macos):
    done = macos(ROOT / "scripts" / "base-image", "trixie")
    assert (done.returncode, done.stderr) == (0, "base image: pulling debian:trixie-slim\n")


def test_a_base_image_that_cannot_be_had(macos):
    done = macos(ROOT / "scripts" / "base-image", "trixie", docker="echo 'no such host' >&2; exit 1")
    assert done.returncode == 1
    assert "no pull: no such host" in done.stderr
    assert "docker pull debian:trixie-slim, or docker load it" in done.stderr


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
def test_a_base_image_is_made_through_the_users_proxy(macos, tmp_path, name):
    macos.program("mmdebstrap", f'echo "$http_proxy" >{tmp_path}/through')
    macos.program("sudo", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    done = macos(ROOT / "scripts" / "base-image", "trixie", docker="[[ $1 == import ]]", **{name: "http://proxy:3128"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "through").read_text() == "http://proxy:3128\n"


def test_an_environment_is_made(macos, tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "venv", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    macos.program(
        "python3",
        f"""case "$*" in
          '-m venv .venv') mkdir -p .venv/bin; ln -s "$0" .venv/bin/python ;;
          -) exec {sys.executable} "$@" ;;
        esac""",
    )
    done = macos(tmp_path / "scripts" / "venv")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "ready").exists()
