"""What a look at the engine tells of a cluster, from what a real engine listed."""

from pathlib import Path

import pytest

from slurmbed.engine.client import EngineInfo
from slurmbed.engine.snapshot import Container, Named, Snapshot

INFO = EngineInfo("ID", 2, 4096, "/var/lib/docker", True, True, ("runc",))
OURS = {"org.slurmbed": "cluster", "org.slurmbed.clone": "/clone"}


def listed(name: str, project: str, service: str, *, state: str = "running", **labels: str) -> dict:
    """A container as ``GET /containers/json`` gives it."""
    compose = {
        "com.docker.compose.project": project,
        "com.docker.compose.service": service,
        "com.docker.compose.config-hash": "abc",
        "com.docker.compose.oneoff": "False",
    }
    return {
        "Names": [f"/{name}"],
        "Labels": {**compose, **OURS, **labels},
        "State": state,
        "Status": "Up",
        "ImageID": "sha256:1",
        "Ports": [{"IP": "127.0.0.1", "PrivatePort": 22, "PublicPort": 32768, "Type": "tcp"}],
        "Mounts": [{"Type": "bind", "Source": "/host/workspace", "Destination": "/workspace"}],
    }


def snapshot(*containers: dict, named: tuple[Named, ...] = (), name: str = "c") -> Snapshot:
    return Snapshot(name, INFO, tuple(map(Container.read, containers)), named, {})


def test_a_cluster_is_seen_from_its_containers():
    seen = snapshot(
        *[listed(f"c-{name}-1", "c", name) for name in ("db", "slurmdbd", "slurmctld", "login", "node-1", "node-12")],
        listed("other-node-40-1", "other", "node-40"),
    )
    assert seen.highest_node == 12
    assert seen.is_running
    assert seen.made_from == Path("/clone")
    assert seen.services["login"].ssh_port == 32768
    assert seen.strangers == []


def test_a_cluster_of_which_one_container_has_ended_does_not_run():
    names = ("db", "slurmdbd", "slurmctld")
    seen = snapshot(
        *[listed(f"c-{name}-1", "c", name) for name in names], listed("c-login-1", "c", "login", state="exited")
    )
    assert not seen.is_running
    assert seen.exists


def test_a_container_made_by_hand_from_an_image_is_no_part_of_a_cluster():
    """It has the image's labels, those of Compose that built it among them."""
    by_hand = listed("mine", "c", "login")
    del by_hand["Labels"]["com.docker.compose.config-hash"]
    seen = snapshot(by_hand)
    assert not seen.exists
    assert [each.name for each in seen.others_on_images] == ["mine"]


def test_what_somebody_else_made_under_this_name_is_a_stranger():
    other = {"com.docker.compose.project": "c"}
    theirs = listed("c-web-1", "c", "web", **{"org.slurmbed": ""})
    named = (
        Named("volume", "c_data", other),
        Named("network", "c_default", {}),
        Named("volume", "c_home", OURS | other),
    )
    assert snapshot(theirs, named=named).strangers == ["container c-web-1", "network c_default", "volume c_data"]


def test_volumes_that_are_left_say_which_clone_they_are_of():
    seen = snapshot(named=(Named("volume", "c_home", {**OURS, "com.docker.compose.project": "c"}),))
    assert seen.exists
    assert seen.made_from == Path("/clone")
    assert seen.leftovers == ["volume c_home"]


@pytest.mark.parametrize(("state", "writers"), [("running", ["other"]), ("exited", [])])
def test_another_cluster_with_the_same_workspace(state, writers):
    seen = snapshot(listed("c-login-1", "c", "login"), listed("other-login-1", "other", "login", state=state))
    assert seen.writers_to(Path("/host/workspace")) == writers


@pytest.mark.parametrize(
    ("service", "number"), [("node-12", 12), ("login", None), ("slurmdbd", None), ("node-x", None)]
)
def test_node_numbers(service, number):
    assert Container.read(listed("c", "c", service)).node_number == number
