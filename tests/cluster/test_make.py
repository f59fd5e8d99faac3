"""What a user types: make's words, what they print, what they refuse."""

import json
import socket
import subprocess

import pytest

from harness import engine
from harness.commands import make
from harness.internals import ROOT
from harness.names import NAME

OTHER = f"{NAME}-make"


def test_the_compose_file_is_valid_by_itself(image):
    argv = ["docker", "compose", "config", "--format", "json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == {*engine.SERVICES, "node-1", "node-2"}


# What a user may have there for something else: Jenkins sets WORKSPACE, and Compose reads COMPOSE_*.
OF_OTHERS = {
    "COMPOSE_FILE": "/nowhere.yml",
    "COMPOSE_PROFILES": "left-out",
    "TAG": "1",
    "SUITE": "etch",
    "WORKSPACE": "/",
}


@pytest.mark.smoke
def test_a_life_in_makes_words(image, tmp_path):
    odd = tmp_path / "my work:$HOME, et al"
    odd.mkdir()
    odd.joinpath("here").touch()
    try:
        up = make("up", f"NAME={OTHER}", "NODES=1", "MEMORY=512M", "CPUS=1", f"WORKSPACE={odd}", **OF_OTHERS)
        assert up.returncode == 0, up.stderr
        assert "node-2" not in engine.states(OTHER)
        assert "node-1" in up.stdout
        assert "512 MiB" in up.stdout
        scaled = make("scale", f"NAME={OTHER}", "NODES=2")
        assert scaled.returncode == 0, scaled.stderr
        assert "node-2" in scaled.stdout
        assert "node-1" in make("status", f"NAME={OTHER}").stdout
        assert "slurmctld" in make("logs", f"NAME={OTHER}", "SERVICE=slurmctld").stdout
        shell = make("shell", f"NAME={OTHER}", stdin="id -un; sinfo -h -o %D; srun -w node-2 ls\n")
        assert shell.stdout.split() == ["alice", "2", "here"]
        assert make("down", f"NAME={OTHER}", **OF_OTHERS).returncode == 0
        stopped = make("status", f"NAME={OTHER}")
        assert stopped.returncode != 0
        assert "is not running" in stopped.stderr
    finally:
        cleaned = make("clean", f"NAME={OTHER}")
    assert cleaned.returncode == 0, cleaned.stderr
    assert engine.left(OTHER) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["NODES=0"], "NODES=0: not a whole number"),
        (["NODES=abc"], "NODES=abc: not a whole number"),
        (["MEMORY=9000G"], "the host has"),
        (["SLURM=19.05"], "'19.05' is not one of '24.11', '26.05'"),
        (["NODEZ=2"], "NODEZ=2: up takes no NODEZ\ndid you mean NODES?"),
    ],
)
def test_bad_words_start_nothing(image, words, reason):
    done = make("up", f"NAME={OTHER}", *words)
    assert done.returncode != 0
    assert reason in done.stderr
    assert engine.states(OTHER) == {}


def test_a_taken_port_starts_nothing(image):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = make("up", f"NAME={OTHER}", f"SSH_PORT={port}")
    assert done.returncode != 0
    assert f"SSH_PORT={port}: Address already in use" in done.stderr
    assert engine.states(OTHER) == {}


@pytest.mark.parametrize("target", ["up", "status", "down"])
def test_a_refused_engine_is_said_in_a_line(target):
    done = make(target, f"NAME={OTHER}", DOCKER_HOST="tcp://127.0.0.1:9")
    assert done.returncode != 0
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["status", "shell", "logs", "down", "scale"])
def test_what_needs_a_cluster_says_so(target):
    words = ["NODES=3"] if target == "scale" else []
    done = make(target, f"NAME={NAME}-none", *words)
    assert done.returncode != 0
    assert f"no such cluster: {NAME}-none" in done.stderr


def test_scaling_by_bad_words_changes_nothing(slurm):
    done = make("scale", f"NAME={NAME}", "NODES=none")
    assert done.returncode != 0
    assert len(slurm.nodes()) == 2
