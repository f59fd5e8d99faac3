"""Words of the command line: make's way and the usual way, and refusals before anything starts."""

import pytest

from slurmbed import cli, host
from slurmbed.cluster import Cluster


def test_makes_words_are_options():
    assert cli.as_option("NODES=8") == "--nodes=8"
    assert cli.as_option("SSH_PORT=2222") == "--ssh-port=2222"
    assert cli.as_option("TEXT=a b=c.txt") == "--text=a b=c.txt"
    assert cli.as_option("up") == "up"


def test_every_target_of_the_makefile_is_a_command():
    makefile = (host.Path(cli.__file__).parent.parent / "Makefile").read_text()
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
        (["up", "NAME=Big"], "NAME=Big: not a cluster name"),
        (["up", "NODE=3"], "unrecognized arguments: --node=3"),
        (["scale"], "to how many nodes?"),
        (["train", "STEPS=-1"], "STEPS=-1: not a whole number"),
        (["train", "TEXT=/no/such/file"], "TEXT=/no/such/file: no such file"),
        (["test", "ONLY=fast"], "ONLY=fast: no such tests"),
    ],
)
def test_bad_words_are_refused_before_an_engine_is_asked(capsys, monkeypatch, words, reason):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert reason in refused(capsys, *words)


def test_no_disk(capsys, monkeypatch):
    monkeypatch.setattr(Cluster, "ensure_engine", lambda self: None)
    monkeypatch.setattr("slurmbed.compose.Compose.containers", lambda self: [])
    monkeypatch.setattr(host.Host, "read", classmethod(lambda cls: cls(cpus=2, memory=4096, free_disk=10)))
    assert "10 MiB of disk are free" in refused(capsys, "up", "NAME=slurmbed-test-none")
