"""scripts/engine, with a `docker` that answers as an engine in trouble would."""

import os
import subprocess
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "scripts" / "engine"


def answer(tmp_path: Path, docker: str, **environment: str) -> subprocess.CompletedProcess:
    """Run scripts/engine where ``docker`` is this shell script, and nothing can be installed."""
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/bash\n{docker}\n")
    program.chmod(0o755)
    for blocked in ("apt-get", "sudo", "systemctl", "dockerd"):
        (tmp_path / blocked).write_text("#!/bin/bash\necho blocked >&2; exit 9\n")
        (tmp_path / blocked).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment}
    return subprocess.run([ENGINE], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


def test_silent_when_engine_and_compose_answer(tmp_path):
    done = answer(tmp_path, "if [[ $1 == compose ]]; then echo 2.26.1; else echo 28.0; fi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("version", ["1.29.2", "2.19.1", ""])
def test_an_old_compose_is_not_enough(tmp_path, version):
    done = answer(tmp_path, f"if [[ $1 == compose ]]; then echo {version}; else echo 28.0; fi")
    assert done.returncode != 0
    assert (
        "will install Docker Compose v2 (older than 2.20 is not enough)" in done.stderr
        or "this is not Debian" in done.stderr
    )


def test_a_docker_host_that_does_not_answer_is_the_users_to_mend(tmp_path):
    done = answer(tmp_path, "exit 1", DOCKER_HOST="tcp://127.0.0.1:9")
    assert done.returncode != 0
    assert "DOCKER_HOST=tcp://127.0.0.1:9 does not answer" in done.stderr


def test_no_permission_says_how_to_get_it(tmp_path):
    environment = {"DOCKER_HOST": "", "USER": "anna"}
    done = answer(tmp_path, 'echo "permission denied while trying to connect" >&2; exit 1', **environment)
    assert done.returncode != 0
    assert "sudo usermod -aG docker anna" in done.stderr
