"""Removing a cluster, on an engine that keeps a network."""

from functools import partial
from types import SimpleNamespace

import pytest

from slurmbed.cluster import removal
from slurmbed.process import Result
from slurmbed.wait import wait_until


@pytest.fixture
def remove(monkeypatch):
    """remove(looks): what each look finds, of (leftovers, containers on the network). Returns what was said."""
    monkeypatch.setattr(removal, "wait_until", partial(wait_until, sleep=lambda _: None))

    def remove(looks):
        looks, said = iter(looks), []
        seen = SimpleNamespace()

        def look():
            left, seen.connected = next(looks)
            networks = [each.split()[1] for each in left if each.startswith("network ")]
            return SimpleNamespace(leftovers=left, networks=networks)

        refused = Result(["docker"], 1, "", "network c_default has active endpoints")
        compose = SimpleNamespace(project="c", by_name=lambda *_, **__: refused)
        removal.remove(SimpleNamespace(containers_on=lambda _: seen.connected), compose, look, said.append)
        assert next(looks, None) is None, "there were looks left"
        return said

    return remove


NETWORK, VOLUME = "network c_default", "volume c_home"


def test_a_network_that_docker_keeps_for_nobody_is_said_and_is_no_error(remove):
    (said,) = remove([([VOLUME, NETWORK], [])] * 3 + [([NETWORK], [])] * removal.UNUSED_LOOKS)
    assert "does not remove the network c_default, although no container is connected" in said


def test_a_network_with_a_guest_is_waited_for(remove):
    guests, unused = [([NETWORK], ["guest"])] * 20, [([NETWORK], [])] * (removal.UNUSED_LOOKS - 1)
    assert remove([*unused, *guests, *unused, ([], [])]) == []
