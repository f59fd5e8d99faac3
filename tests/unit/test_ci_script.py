"""Runs of the tests on one engine: each has a name of its own, and CI removes what dead runs left, not the others'."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurmbed.wait import Pending, wait_until

ROOT = Path(__file__).parents[2]
CLAIM = """
import sys, time
from dev import testrun
from slurmbed.process import run
print(testrun.name(), flush=True)
if "hand-over" in sys.argv:
    run(["sh", "-c", "echo $$ >&2; exec sleep 600"], timeout=600, capture=False)
time.sleep(600)
"""
# An engine with the containers of $LISTED; what it is told to remove goes to the file `removed`.
DOCKER = """#!/bin/bash
case $1 in
  ps) printf '%s' "$LISTED" ;;
  rm) printf '%s\\n' "$@" >>removed ;;
esac
"""


@pytest.fixture
def start_run():
    """A process that has claimed a name, and the name; ended with all it started."""
    started = []

    def start_run(*words: str) -> tuple[subprocess.Popen, str]:
        env = {name: value for name, value in os.environ.items() if name != "SLURMBED_TEST_RUN"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        argv = [sys.executable, "-c", CLAIM, *words]
        process = subprocess.Popen(argv, cwd=ROOT, env=env, **streams)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start_run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def removed(tmp_path):
    """The ids of containers that .ci/run removes, of those with these names: removed({id: name})."""
    (tmp_path / "bin").mkdir()
    for name, text in (("docker", DOCKER), ("make", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").symlink_to(ROOT / ".ci" / "run")

    def removed(names: dict[str, str]) -> set[str]:
        listed = "".join(f"{id} {name}\n" for id, name in names.items())
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "LISTED": listed}
        done = subprocess.run([tmp_path / ".ci" / "run"], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told = (tmp_path / "removed").read_text().split() if (tmp_path / "removed").exists() else []
        return names.keys() & set(told)

    return removed


def test_runs_have_names_of_their_own_and_are_not_removed_while_they_live(start_run, removed):
    (_, first), (second, other) = start_run(), start_run()
    assert first != other
    assert re.fullmatch("slurmbed-test-[0-9a-f]{4}", first)
    second.kill()
    second.wait()
    left = {"1": f"{first}-gw0-login-1", "2": f"{other}-gw0-login-1", "3": "slurmbed-test-of-an-older-version-db-1"}
    assert removed(left) == {"2", "3"}


def test_a_run_lives_as_long_as_one_of_its_processes(start_run, removed):
    process, name = start_run("hand-over")
    part = int(process.stderr.readline())
    process.kill()
    process.wait()
    left = {"1": f"{name}-training"}
    try:
        assert removed(left) == set()
    finally:
        os.kill(part, signal.SIGKILL)
    wait_until(lambda: require_end(part), what="the part has ended", timeout=30)
    assert removed(left) == {"1"}
    assert not Path(f"/tmp/{name}.lock").exists(), "nothing stays of a dead run"


def require_end(process: int) -> None:
    """Pending while there is such a process, though nobody may have asked how it ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().split()[2]
    except FileNotFoundError:
        return
    if state != "Z":
        raise Pending(state)


def test_a_part_of_a_run_takes_its_name(monkeypatch):
    from dev import testrun

    monkeypatch.setenv(testrun.VARIABLE, "slurmbed-test-0a1b")
    assert testrun.name() == "slurmbed-test-0a1b"
