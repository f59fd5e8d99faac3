"""What a user types: make's words, what they print, what they refuse."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import NAME, NODES, make
from slurmbed.cluster.cluster import SERVICES
from slurmbed.engine.compose import ROOT, Compose

OTHER = f"{NAME}-make"


def test_the_compose_file_is_valid_by_itself(image):
    argv = ["docker", "compose", "config", "--format", "json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == {*SERVICES, "node-1", "node-2"}


def test_a_life_in_makes_words(image):
    try:
        up = make("up", f"NAME={OTHER}", "NODES=1", "MEMORY=512M", "CPUS=1")
        assert up.returncode == 0, up.stderr
        assert "node-1" in up.stdout
        assert "512 MiB" in up.stdout
        scaled = make("scale", f"NAME={OTHER}", "NODES=2")
        assert scaled.returncode == 0, scaled.stderr
        assert "node-2" in scaled.stdout
        assert "node-1" in make("status", f"NAME={OTHER}").stdout
        assert "slurmctld" in make("logs", f"NAME={OTHER}", "SERVICE=slurmctld").stdout
        shell = make("shell", f"NAME={OTHER}", stdin="id -un; sinfo -h -o %D\n")
        assert shell.stdout.split() == ["alice", "2"]
        assert make("down", f"NAME={OTHER}").returncode == 0
        stopped = make("status", f"NAME={OTHER}")
        assert stopped.returncode != 0
        assert "is not running" in stopped.stderr
    finally:
        cleaned = make("clean", f"NAME={OTHER}")
    assert cleaned.returncode == 0, cleaned.stderr
    assert Compose(OTHER).containers() == []


def test_train_ends_with_placement_losses_sample_and_report(cluster, text):
    done = make("train", f"NAME={NAME}", "STEPS=10", f"TEXT={cluster.workspace() / text}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the log and Slurm agree" in done.stdout
    for node in ("node-1", "node-2"):
        assert node in done.stdout
    assert "validation loss" in done.stdout
    assert "sample" in done.stdout
    report = done.stdout.split("report: ")[1].strip()
    with open(report) as page:
        assert "base64," in page.read()


def test_an_unknown_strategy_is_refused_before_a_job(cluster):
    done = make("train", f"NAME={NAME}", "PARALLEL=magic")
    assert done.returncode != 0
    assert "there is no strategy 'magic'" in done.stderr
    assert "choose from none, ddp, tp" in done.stderr


def test_compare_runs_every_strategy_on_nodes_of_its_own_to_the_same_loss(cluster, text):
    """Each job's placement is proved before it counts: two nodes, and four for hybrid, to which the cluster grows."""
    try:
        done = make("compare", f"NAME={NAME}", "STEPS=6", f"TEXT={cluster.workspace() / text}")
    finally:
        assert make("scale", f"NAME={NAME}", f"NODES={NODES}").returncode == 0
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.split("the same batches by every strategy")[1].splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) == 8}
    assert list(table) == ["none", "ddp", "tp", "tp-dtensor", "fsdp", "pp", "hybrid"]
    for name, (ranks, nodes, *_, difference) in table.items():
        assert ranks == nodes == {"none": "1", "hybrid": "4"}.get(name, "2")
        assert name == "none" or abs(float(difference)) < 1e-3, f"{name} does not train the model that none does"
    report = done.stdout.split("report: ")[1].strip()
    assert "/runs/compare-" in report
    written = Path(report).read_text()
    assert "data parallel over 2 ranks" in written
    assert written.count("base64,") == len(table) + 2, "losses, a timeline of each, shard maps"


def test_bubble_ends_with_a_table_and_a_picture(cluster):
    done = make("bubble", f"NAME={NAME}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "idle: theory" in done.stdout
    assert Path(done.stdout.split("picture: ")[1].strip()).read_bytes().startswith(b"\x89PNG")


def test_bench_collectives_ends_with_a_table_and_a_plot(cluster):
    done = make("bench-collectives", f"NAME={NAME}", "LARGEST=2048")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce by gloo" in done.stdout
    assert Path(done.stdout.split("plot: ")[1].strip()).read_bytes().startswith(b"\x89PNG")


def test_train_that_fails_shows_state_exit_code_and_the_last_lines(cluster, text):
    """Four heads over three ranks: the cluster grows for it, and the job refuses with both numbers."""
    try:
        done = make("train", f"NAME={NAME}", "NODES=3", f"TEXT={cluster.workspace() / text}")
    finally:
        assert make("scale", f"NAME={NAME}", f"NODES={NODES}").returncode == 0
    assert done.returncode != 0
    assert "ended FAILED, exit code" in done.stderr
    assert "--heads 4 cannot be divided over 3 ranks" in done.stderr
    assert str(cluster.workspace() / "runs") in done.stderr


def test_train_refuses_a_workspace_that_another_cluster_writes_to(cluster, text):
    try:
        assert make("up", f"NAME={OTHER}", "NODES=1", f"WORKSPACE={cluster.workspace()}").returncode == 0
        done = make("train", f"NAME={OTHER}", "NODES=1", f"TEXT={cluster.workspace() / text}")
    finally:
        assert make("clean", f"NAME={OTHER}").returncode == 0
    assert done.returncode != 0
    assert f"the cluster {NAME} writes its runs to {cluster.workspace()} too" in done.stderr


def test_a_text_that_is_too_short_is_refused_before_a_job(cluster, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("ab\n" * 100)
    done = make("train", f"NAME={NAME}", f"TEXT={short}")
    assert done.returncode != 0
    assert "has 300 characters, it needs 1000 or more" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["NODES=0"], "NODES=0: not a whole number"),
        (["NODES=abc"], "NODES=abc: not a whole number"),
        (["MEMORY=9000G"], "the host has"),
        (["SLURM=19.05"], "SLURM=19.05: not a version known here"),
        (["NODEZ=2"], "unrecognized arguments: --nodez=2"),
    ],
)
def test_bad_words_start_nothing(image, words, reason):
    done = make("up", f"NAME={OTHER}", *words)
    assert done.returncode != 0
    assert reason in done.stderr
    assert Compose(OTHER).containers() == []


def test_a_taken_port_starts_nothing(image):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = make("up", f"NAME={OTHER}", f"SSH_PORT={port}")
    assert done.returncode != 0
    assert f"SSH_PORT={port}: Address already in use" in done.stderr
    assert Compose(OTHER).containers() == []


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
    assert f"there is no cluster {NAME}-none" in done.stderr


def test_scaling_by_bad_words_changes_nothing(cluster):
    done = make("scale", f"NAME={NAME}", "NODES=none")
    assert done.returncode != 0
    assert len(cluster.slurm.nodes()) == NODES
