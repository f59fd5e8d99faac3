"""Which clusters an engine has, from the labels of what is on it."""

from pathlib import Path

from slurmbed.cluster.listing import clusters
from slurmbed.cluster.settings import Choices
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.overlay import CHOICES_LABEL
from slurmbed.engine.snapshot import Container, Named, Snapshot

PROJECT = "com.docker.compose.project"
OURS = {"org.slurmbed": "cluster", "org.slurmbed.clone": "/clone"}
SERVICES = ("db", "slurmdbd", "slurmctld", "login", "node-1", "node-2")


def container(project: str, service: str, created: int, state: str = "running", **labels: str) -> Container:
    name = f"{project}-{service}-1"
    return Container(name, project, service, state, "Up", "sha256:1", {PROJECT: project, **labels}, {}, created=created)


def cluster_of(project: str, created: int, state: str = "running") -> list[Container]:
    made = {**OURS, CHOICES_LABEL: Choices(slurm="26.05", owner="ann", workspace=Path("/work")).model_dump_json()}
    return [container(project, service, created + i, state, **made) for i, service in enumerate(SERVICES)]


def test_every_cluster_is_listed_by_name_whoever_made_it_and_nothing_else():
    containers = [
        *cluster_of("b", 100),
        *cluster_of("a", 50, state="exited"),
        container("blog", "db", 1),
        container("blog", "login", 1),
    ]
    left = Named("volume", "c_home", {PROJECT: "c", **OURS})
    info = EngineInfo.__new__(EngineInfo)
    a, b, c = clusters(Snapshot("slurmbed", info, tuple(containers), (left,), {}))
    assert (a.name, a.state, a.nodes, a.slurm, a.created) == ("a", "stopped", 2, "26.05", 50)
    assert (b.name, b.owner, b.state, b.workspace, b.clone) == ("b", "ann", "running", Path("/work"), Path("/clone"))
    assert (c.name, c.state, c.nodes, c.created) == ("c", "only volumes", 0, None)
