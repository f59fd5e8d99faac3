"""`up` that is stopped, killed, or started twice: nothing stays that should not, and nothing is lost."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import WORKSPACE, make_cluster
from harness.commands import hear_ctrl_c, typed_environment
from harness.internals import ROOT
from harness.names import NAME
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

STOPPED = f"{NAME}-stopped"
SMALL = ("MEMORY=512M", "CPUS=1")
SLURMBED = (str(Path(sys.executable).parent / "slurmbed"), "up")
MAKE = ("make", "--silent", "up")


class Command:
    """`up` in the background; what it says goes to a file, as in CI."""

    def __init__(self, folder: Path, argv: tuple[str, ...], number: int, size: tuple[str, ...]):
        self.log = folder / f"{number}.log"
        with self.log.open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            options = {"cwd": ROOT, "env": typed_environment(), "start_new_session": True, "preexec_fn": hear_ctrl_c}
            self.process = subprocess.Popen([*argv, f"NAME={STOPPED}", *size], **streams, **options)

    def said(self) -> str:
        return self.log.read_text()

    def wait_until(self, moment) -> None:
        def check() -> None:
            assert self.process.poll() is None, self.said()
            if not moment(self):
                raise Pending(self.said()[-300:])

        wait_until(check, what="the moment to stop it", timeout=120, interval=0.02)

    def end(self) -> int:
        return self.process.wait(timeout=300)


@pytest.fixture
def start(image, tmp_path):
    commands = []

    def begin(argv: tuple[str, ...] = SLURMBED, size: tuple[str, ...] = SMALL) -> Command:
        commands.append(Command(tmp_path, argv, len(commands), size))
        return commands[-1]

    yield begin
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
    make_cluster(STOPPED).clean()


@pytest.fixture
def never_ready(tmp_path) -> tuple[str]:
    """The size of a cluster whose first job does not begin, so that there is time to stop its start."""
    prolog = tmp_path / "hooks" / "prolog.d" / "wait"
    prolog.parent.mkdir(parents=True)
    prolog.write_text("#!/bin/sh\nsleep 600\n")
    prolog.chmod(0o755)
    file = tmp_path / "never-ready.yaml"
    file.write_text("nodes: [{name: cpu, count: 2, cpus: 1, memory: 512M}]\nhooks: hooks\n")
    return (f"CONFIG={file}",)


def something_is_made(_: Command) -> bool:
    return bool(engine.left(STOPPED))


def a_container_runs(_: Command) -> bool:
    return "running" in engine.states(STOPPED).values()


def slurm_is_waited_for(command: Command) -> bool:
    return "waiting until Slurm is ready" in command.said()


@pytest.mark.parametrize(
    ("argv", "moment", "statuses"),
    [
        (SLURMBED, something_is_made, [143]),
        (SLURMBED, a_container_runs, [143]),
        (MAKE, slurm_is_waited_for, [-signal.SIGTERM, 2]),
    ],
)
def test_sigterm_removes_what_was_started(start, never_ready, argv, moment, statuses):
    """What CI sends when it cancels; from make it reaches slurmbed, which is all that make waits for."""
    command = start(argv, never_ready)
    command.wait_until(moment)
    command.process.send_signal(signal.SIGTERM)
    assert command.end() in statuses, command.said()
    assert "removed what was started" in command.said()
    assert engine.left(STOPPED) == []


@pytest.fixture
def guest(image):
    """Runs a container of somebody else on the cluster's network, which cannot be removed then; ends it."""

    def come() -> None:
        network = ("--network", f"{STOPPED}_default", "--name", f"{STOPPED}-guest")
        engine.docker("run", "--detach", *network, "--entrypoint", "sleep", image, "600")

    def go() -> None:
        run(["docker", "rm", "--force", f"{STOPPED}-guest"], timeout=60)

    yield come, go
    go()


def test_a_second_signal_does_not_stop_the_removal(start, guest, never_ready):
    """It comes when the containers are gone and the network is not: a guest on it keeps the removal from its end."""
    (come, go), command = guest, start(size=never_ready)
    command.wait_until(slurm_is_waited_for)
    come()
    command.process.send_signal(signal.SIGINT)
    command.wait_until(lambda _: engine.states(STOPPED) == {})
    command.process.send_signal(signal.SIGTERM)
    command.wait_until(lambda _: "still removing what was started" in command.said())
    go()
    assert command.end() == 130
    assert engine.left(STOPPED) == []


@pytest.mark.parametrize("moment", [something_is_made, slurm_is_waited_for])
def test_after_kill_9_the_next_up_mends_it(start, moment):
    command = start()
    command.wait_until(moment)
    command.process.kill()
    command.end()
    assert [node.name for node in make_cluster(STOPPED).up()] == ["node-1", "node-2"]
    assert set(engine.states(STOPPED)) == {*engine.SERVICES, "node-1", "node-2"}


def test_containers_that_never_ran_are_made_anew(start, image):
    """As a start leaves them that was killed with all its commands; one node of them is not what anyone asked for."""
    made = {"CLONE": str(ROOT), "WORKSPACE": str(WORKSPACE), "TAG": image.rpartition(":")[2]}
    made = {f"SLURMBED_{name}": value for name, value in made.items()}
    argv = ["docker", "compose", "-p", STOPPED, "-f", str(ROOT / "docker-compose.yml"), "create", "--no-build"]
    run([*argv, *engine.SERVICES, "node-1"], timeout=120, env=made).check()
    assert set(engine.states(STOPPED).values()) == {"created"}
    assert [node.name for node in make_cluster(STOPPED).up()] == ["node-1", "node-2"]


def test_two_ups_at_once_make_one_cluster(start):
    first, second = start(), start()
    assert (first.end(), second.end()) == (0, 0), first.said() + second.said()
    waited = [command for command in (first, second) if "waiting for slurmbed up" in command.said()]
    assert len(waited) == 1, first.said() + second.said()
    other = second if waited == [first] else first
    assert f"process {other.process.pid}" in waited[0].said()
    for command in (first, second):
        assert "node-2" in command.said()
    assert set(engine.states(STOPPED).values()) == {"running"}


def test_clean_waits_for_an_up(start):
    command = start()
    command.wait_until(something_is_made)
    heard: list[str] = []
    make_cluster(STOPPED, heard.append).clean()
    assert command.end() == 0, command.said()
    assert f"process {command.process.pid}" in heard[0]
    assert engine.left(STOPPED) == []
