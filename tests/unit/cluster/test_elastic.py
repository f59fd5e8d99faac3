"""Nodes that come and go: what is declared, started and stopped, and when the agent ends."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from slurmbed.cluster import elastic
from slurmbed.cluster.elastic import agent, declare, settle, ways_to_start
from slurmbed.engine.overlay import SERVICES, SLICE_LABEL
from slurmbed.engine.snapshot import Container, Snapshot
from slurmbed.errors import UsageError
from slurmbed.spec.load import load
from slurmbed.spec.slices import Slice

BASE = Slice(cpus=1, memory=512, features=("base",))
CLOUD = Slice(cpus=1, memory=512, features=("cloud",), elastic=True)
LARGE = Slice(cpus=4, memory=512, features=("large",), elastic=True)


def test_records_are_made_in_order_of_their_groups_and_lasting_nodes_are_never_suspended():
    asked = []
    answer = SimpleNamespace(check=lambda: None)
    declare([object(), object()], [BASE, CLOUD, CLOUD, CLOUD, LARGE], lambda argv: asked.append(argv) or answer)
    records = [" ".join(argv) for argv in asked if argv[1] == "create"]
    assert records == [
        "scontrol create NodeName=node-[3-4] State=CLOUD CPUs=1 RealMemory=512 Feature=cloud",
        "scontrol create NodeName=node-[5-5] State=CLOUD CPUs=4 RealMemory=512 Feature=large",
    ]
    assert asked[-1] == ["scontrol", "update", "SuspendExcNodes=node-[1-1]"]


def test_elastic_containers_are_made_and_not_started():
    assert ways_to_start(2, 2) == [("up", "--detach", "--no-build", "--remove-orphans")]
    create, up = ways_to_start(1, 4)
    assert create[0] == "create"
    assert up[-len(SERVICES) - 1 :] == (*SERVICES, "node-1")


class Engine:
    """An engine with a cluster of these nodes, by number: (slice, state). It notes what it is told."""

    def __init__(self, nodes: dict[int, tuple[Slice, str]], controller: str = "running"):
        self.info = SimpleNamespace(id="ID")
        self.told: list[str] = []
        self.states = {**dict.fromkeys(SERVICES, "running"), "slurmctld": controller}
        self.slices = {f"node-{number}": part for number, (part, _) in nodes.items()}
        self.states |= {f"node-{number}": state for number, (_, state) in nodes.items()}

    def snapshot(self, _, name: str) -> Snapshot:
        containers = [
            Container(service, name, service, state, "", "", self.labels(service), {})
            for service, state in self.states.items()
        ]
        return Snapshot(name, None, tuple(containers), (), {})

    def labels(self, service: str) -> dict[str, str]:
        return {SLICE_LABEL: self.slices[service].model_dump_json()} if service in self.slices else {}

    def act(self, action: str, container: str) -> None:
        self.told.append(f"{action} {container}")

    def start(self, *_, **__):
        """What slurmctld's container prints: all that is wanted; then the cluster is stopped."""
        self.states["slurmctld"] = "exited"
        return SimpleNamespace(lines=lambda: iter(["node-2"]))


@pytest.fixture
def made(monkeypatch, tmp_path):
    """made(engine): the engine that the agent finds."""
    monkeypatch.setattr(elastic, "lock", lambda *_, **__: nullcontext())
    monkeypatch.setattr(elastic, "FOLDER", tmp_path)
    monkeypatch.setattr(elastic, "RESTART", 0)
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def made(engine: Engine) -> Engine:
        monkeypatch.setattr(elastic, "Engine", lambda: engine)
        monkeypatch.setattr(elastic, "Snapshot", SimpleNamespace(take=engine.snapshot))
        return engine

    return made


def test_wanted_nodes_are_started_others_stopped_and_lasting_ones_left_alone(made):
    nodes = {1: (BASE, "running"), 2: (CLOUD, "created"), 3: (CLOUD, "running"), 4: (CLOUD, "exited")}
    engine = made(Engine(nodes))
    settle(engine, "c", ["node-2"])
    assert engine.told == ["start node-2", "stop node-3"]


def test_nothing_is_started_in_a_cluster_that_was_stopped(made):
    engine = made(Engine({1: (BASE, "exited"), 2: (CLOUD, "exited")}, controller="exited"))
    settle(engine, "c", ["node-2"])
    assert engine.told == []


def test_the_agent_ends_with_its_cluster(made, capsys):
    made(Engine({1: (BASE, "running"), 2: (CLOUD, "created")}))
    agent("c")
    assert "the cluster is stopped" in capsys.readouterr().out


@pytest.mark.parametrize("groups", ["[{name: a, elastic: true}]", "[{name: a}, {name: b, elastic: true}, {name: c}]"])
def test_elastic_groups_come_last(tmp_path, groups):
    file = tmp_path / "cloud.yaml"
    file.write_text(f"nodes: {groups}")
    with pytest.raises(UsageError, match="elastic groups come last, after a group whose nodes always run"):
        load(file, lambda: ())
