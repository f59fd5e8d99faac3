"""A cluster that cannot start: it says why, and leaves what was there before, and nothing else."""

import pytest

from harness import engine
from harness.clusters import make_cluster
from harness.names import NAME
from slurmbed.errors import NotReady

BROKEN = f"{NAME}-broken"


@pytest.fixture
def broken(image, monkeypatch) -> str:
    """The name of a cluster whose containers cannot start: the uid that jobs are to have is the user slurm's."""
    monkeypatch.setenv("SUDO_UID", "64030")
    yield BROKEN
    make_cluster(BROKEN).clean()


def test_it_says_why_and_leaves_nothing(broken):
    heard: list[str] = []
    with pytest.raises(NotReady, match=r"Restarting|ended while the cluster started"):
        make_cluster(broken, heard.append).up()
    said = "\n".join(heard)
    assert "UID 64030 is not unique" in said
    assert "removed what was started" in said
    assert engine.left(broken) == []


def test_retain_keeps_it(broken):
    heard: list[str] = []
    with pytest.raises(NotReady):
        make_cluster(broken, heard.append, retain=True).up()
    assert engine.states(broken)
    assert f"make clean NAME={broken}" in "\n".join(heard)


def test_volumes_of_a_cluster_that_was_there_are_kept(broken):
    """Homes and accounting outlive containers that somebody removed."""
    name = f"{broken}_home"
    labels = (f"com.docker.compose.project={broken}", "com.docker.compose.volume=home", "org.slurmbed=cluster")
    engine.docker("volume", "create", *(f"--label={label}" for label in labels), name)
    with pytest.raises(NotReady):
        make_cluster(broken).up()
    assert name in engine.volumes(broken)
