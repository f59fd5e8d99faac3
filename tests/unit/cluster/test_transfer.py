"""Images by way of files and registries, with a `docker` that only says what it was told."""

import os

import pytest

from slurmbed.cluster import images, transfer
from slurmbed.cluster.settings import Choices
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import CommandError, UsageError

CHOICES = Choices(flavor="slim", digest="0123456789ab")
NAMES = [f"slurmbed-{kind}:24.11-slim-0123456789ab" for kind in ("db", "control", "node")]
INFO = EngineInfo("ID", 8, 8192, "/var/lib/docker", True, True, ("runc",))
# As Docker Engine 20.10 and 28 print it.
LOADED = f"Loaded image: {NAMES[0]}\nLoaded image: {NAMES[1]}\nLoaded image ID: sha256:0123\n"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Each command that docker was given so far; one that FAILS names ends with status 1."""
    log = tmp_path / "log"
    log.touch()
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{log}\ncase "$*" in *"${{FAILS:-nothing}}"*) echo no such image >&2; exit 1 ;; esac\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: log.read_text().splitlines()


@pytest.mark.parametrize("name", ["registry.example.org/me", "localhost:5000", "127.0.0.1:5000/class/a_b", "me"])
def test_a_registry_is_named_as_in_names_of_images(name):
    assert transfer.registry_name(name) == name


@pytest.mark.parametrize("name", ["https://registry.example.org/me", "me/", "example.org/Me", "a b", ""])
def test_what_is_no_registry_is_refused(name):
    with pytest.raises(UsageError, match="not a registry"):
        transfer.registry_name(name)


def test_pushed_images_have_their_own_names_alone_afterwards(told):
    transfer.push(NAMES[:1], "localhost:5000", print)
    remote = f"localhost:5000/{NAMES[0]}"
    assert told() == [f"tag {NAMES[0]} {remote}", f"push {remote}", f"rmi {remote}"]


def test_a_registry_that_takes_no_image_leaves_no_names(told, monkeypatch):
    monkeypatch.setenv("FAILS", "push")
    with pytest.raises(CommandError, match=r"docker push localhost:5000/slurmbed-db(.|\n)*no such image"):
        transfer.push(NAMES, "localhost:5000", print)
    assert told()[-1] == f"rmi localhost:5000/{NAMES[0]}"


def test_what_a_registry_has_is_not_built(told, monkeypatch):
    monkeypatch.setattr(images, "build", lambda *_: pytest.fail("built"))
    transfer.obtain(CHOICES, True, print, print, "registry.example.org/me")
    pulled = [line.split()[1] for line in told() if line.startswith("pull ")]
    assert pulled == [f"registry.example.org/me/{name}" for name in NAMES]
    assert [line.split()[2] for line in told() if line.startswith("tag ")] == NAMES


def test_what_a_registry_has_not_is_built_and_the_reason_said(told, monkeypatch):
    built, said = [], []
    monkeypatch.setattr(images, "build", lambda choices, *_: built.append(choices))
    monkeypatch.setenv("FAILS", "pull registry.example.org/me/slurmbed-control")
    transfer.obtain(CHOICES, True, said.append, print, "registry.example.org/me")
    assert built == [CHOICES]
    assert "exit status 1: docker pull registry.example.org/me/slurmbed-control" in said[-1]


def test_without_a_registry_nothing_is_pulled(told, monkeypatch):
    built = []
    monkeypatch.setattr(images, "build", lambda choices, *_: built.append(choices))
    transfer.obtain(CHOICES, True, print, print, "")
    assert (built, told()) == ([CHOICES], [])


def test_the_registry_of_the_environment(monkeypatch):
    monkeypatch.delenv(transfer.REGISTRY, raising=False)
    assert transfer.registry_of_environment() == ""
    monkeypatch.setenv(transfer.REGISTRY, "registry.example.org/me")
    assert transfer.registry_of_environment() == "registry.example.org/me"


def test_images_that_are_not_there_are_named_with_what_builds_them():
    there = Snapshot("c", INFO, (), (), {NAMES[0]: "sha256:1"})
    with pytest.raises(UsageError, match=rf"{NAMES[1]}, {NAMES[2]}\nslurmbed images build .*--flavor slim"):
        transfer.require(CHOICES, there)


def test_what_docker_has_loaded():
    assert transfer.loaded(LOADED) == NAMES[:2]


def test_images_that_a_cluster_needs_come_first_in_the_list():
    found = transfer.listed(CHOICES, {"slurmbed-db:old": 1, NAMES[0]: 2})
    assert [(each.name, each.state, each.bytes) for each in found] == [
        (NAMES[0], "here", 2),
        (NAMES[1], "missing", None),
        (NAMES[2], "missing", None),
        ("slurmbed-db:old", "other", 1),
    ]
