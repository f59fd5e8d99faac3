"""Words of the command line: make's way and the usual way, and refusals before anything starts."""

import os
import subprocess
from contextlib import nullcontext

import pytest

from slurmbed.cli import main as cli
from slurmbed.cluster import host
from slurmbed.cluster.cluster import Cluster
from slurmbed.engine.compose import ROOT


def test_makes_words_are_options():
    assert cli.as_option("NODES=8") == "--nodes=8"
    assert cli.as_option("SSH_PORT=2222") == "--ssh-port=2222"
    assert cli.as_option("TEXT=a b=c.txt") == "--text=a b=c.txt"
    assert cli.as_option("up") == "up"


def test_every_target_of_the_makefile_is_a_command():
    makefile = (ROOT / "Makefile").read_text()
    targets = makefile.split("TARGETS := ")[1].splitlines()[0].split()
    assert set(targets) == set(cli.COMMANDS)
    for target in targets:
        assert f"#: make {target}" in makefile


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["up", "NODES=0"], "NODES=0: not a whole number from 1 to 256"),
        (["up", "NODES=abc"], "NODES=abc: not a whole number"),
        (["up", "SLURM=1.0"], "SLURM=1.0: not a version known here"),
        (["up", "TORCH=jax"], "TORCH=jax: not known"),
        (["up", "GPUS=all"], "GPUS=all: not a number from 0 to 16"),
        (["up", "NAME=Big"], "NAME=Big: not a cluster name"),
        (["up", "NODE=3"], "unrecognized arguments: --node=3"),
        (["up", "RETAIN=0"], "RETAIN=0: not known"),
        (["up", "WORKSPACE=/no/such"], "WORKSPACE=/no/such: not a folder"),
        (["train", "SLURM=1.0"], "SLURM=1.0: not a version known here"),
        (["scale"], "to how many nodes?"),
        (["scale", "NODES=none"], "NODES=none: not a whole number"),
        (["logs", "FOLLOW=yes"], "FOLLOW=yes: not known"),
        (["compare", "STEPS=many"], "STEPS=many: not a whole number"),
        (["compare", "NODES=2"], "unrecognized arguments: --nodes=2"),
        (["train", "STEPS=-1"], "STEPS=-1: not a whole number"),
        (["mnist", "EPOCHS=0"], "EPOCHS=0: not a whole number"),
        (["mnist", "NODES=0"], "NODES=0: not a whole number"),
        (["train", "TEXT=/no/such/file"], "TEXT=/no/such/file: no such file"),
        (["test", "ONLY=fast"], "ONLY=fast: no such tests"),
    ],
)
def test_bad_words_are_refused_before_an_engine_is_asked(capsys, monkeypatch, words, reason):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert reason in refused(capsys, *words)


@pytest.fixture
def engine(monkeypatch):
    """An engine on which nobody else is."""
    monkeypatch.setattr(Cluster, "ensure_engine", lambda self: None)
    monkeypatch.setattr(Cluster, "require_own", lambda self: None)
    monkeypatch.setattr(Cluster, "lock", lambda *_: nullcontext())
    for empty in ("made_from", "shape"):
        monkeypatch.setattr(f"slurmbed.engine.compose.Compose.{empty}", lambda self: None)


def test_no_disk(capsys, monkeypatch, engine):
    monkeypatch.setattr("slurmbed.engine.compose.Compose.containers", lambda self: [])
    monkeypatch.setattr("slurmbed.engine.compose.Compose.volumes", lambda self: [])
    monkeypatch.setattr("slurmbed.cluster.plan.Plan.images_are_there", lambda self: False)
    monkeypatch.setattr(host.Host, "read", classmethod(lambda cls: cls(cpus=2, memory=4096, free_disk=10)))
    assert "10 MiB of disk are free" in refused(capsys, "up", "NAME=slurmbed-test-none")


@pytest.mark.parametrize("target", ["up", "train", "compare", "mnist"])
def test_the_engine_is_seen_to_before_anything_is_asked_of_it(monkeypatch, target):
    class EngineFirst(Exception):
        pass

    def ensure_engine(self):
        raise EngineFirst

    monkeypatch.setattr(Cluster, "ensure_engine", ensure_engine)
    monkeypatch.setattr("slurmbed.engine.compose.run", lambda *_, **__: pytest.fail("docker was asked first"))
    with pytest.raises(EngineFirst):
        cli.main([target])


def test_launchers_run_on_a_cluster_that_is_there_and_install_nothing(capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setattr(Cluster, "ensure_engine", lambda self: pytest.fail("an engine is installed"))
    with pytest.raises(SystemExit):
        cli.main(["launchers"])
    assert "the Docker engine does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["CPUS=1", "MEMORY=1G", "SLURM=24.11", "TORCH=debian", "LAUNCHERS=0"])
def test_what_is_asked_of_a_running_cluster_is_not_ignored(monkeypatch, engine, word):
    class Asked(Exception):
        pass

    def up(self):
        raise Asked

    monkeypatch.setattr(Cluster, "is_running", lambda self: True)
    monkeypatch.setattr(Cluster, "working_nodes", lambda self: 8)
    monkeypatch.setattr("slurmbed.engine.compose.Compose.highest_node", lambda self: 8)
    monkeypatch.setattr(Cluster, "up", up)
    with pytest.raises(Asked):
        cli.main(["mnist", "NODES=2", word])


@pytest.mark.parametrize("word", ["TEXT=it's a.txt", "TEXT=a(1);echo b.txt", "TEXT=$HOME"])
def test_make_passes_words_on_as_they_were_typed(tmp_path, word):
    makefile = (ROOT / "Makefile").read_text()
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (tmp_path / "Makefile").write_text(makefile.replace(": pyproject.toml scripts/venv", ":"))
    (tmp_path / ".venv" / "ready").touch()
    (bin_folder / "slurmbed").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (bin_folder / "slurmbed").chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    argv = ["make", "--silent", "up", word]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["up", word], done.stderr
