"""All that the tests use of slurmbed besides its commands and its public names: one place to change."""

import csv
from pathlib import Path

import pytest

from dev import testrun
from slurmbed import Cluster, Settings
from slurmbed.cluster import access, images, namespaces, plan, readiness
from slurmbed.cluster.host import Host
from slurmbed.cluster.settings import DEFAULT_FLAVOR, VERSIONS
from slurmbed.engine.client import Engine
from slurmbed.errors import UsageError
from slurmbed.project import ROOT
from slurmbed.slurm.placement import parse_ranks
from slurmbed.slurm.records import SACCT, JobAccounting, parse_accounting
from slurmbed.slurm.rest import Rest

DEFAULT_VERSION = next(iter(VERSIONS))

__all__ = [
    "DEFAULT_VERSION",
    "ROOT",
    "SACCT",
    "JobAccounting",
    "parse_accounting",
    "parse_ranks",
    "parse_table",
]


def settings(name: str, **values: object) -> Settings:
    """The settings of a cluster, from values like ``nodes=2, memory="1G", retain=True``.

    The flavor is said, because the plugin's is another than that of the commands.
    """
    chosen = {name: value for name, value in testrun.chosen().items() if value}
    return Settings.model_validate({"name": name, "flavor": DEFAULT_FLAVOR, **chosen, **values})


def build_images(cluster: Cluster) -> str:
    """Build the images if need be; returns the node image's name. Another cluster's start then need not wait for it."""
    choices = cluster.plan().choices
    cluster.build(choices)
    return images.image("node", choices)


def require_containers_in_jobs(image: str) -> None:
    """Skip where the machine refuses what `up --containers` asks for: a probe in the image decides, as for a user."""
    if reason := namespaces.refusal(image, Host.of(Engine().info).apparmor):
        pytest.skip(f"this host does not allow user namespaces in containers: {reason}")


def want_registry_port(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Clusters with containers in jobs take this port if it is free, not 5000."""
    monkeypatch.setattr(plan, "REGISTRY_PORT", port)


def wait_ready(cluster: Cluster, nodes: int) -> None:
    """Block until slurmctld answers, all nodes work and a job ran; NotReady if a container has ended."""
    readiness.wait_ready(cluster.engine, cluster.name, cluster.user, nodes)


def rest_client(cluster: Cluster, user: str) -> Rest:
    """A client of the cluster's slurmrestd with a token of the user; the plugin's slurm_rest is the first user's."""
    return access.rest(cluster, user)


def write(cluster: Cluster, file: str, content: bytes) -> Path:
    """Write a file of the workspace as the commands write their reports."""
    return cluster.write(file, content)


def parse_table(text: str) -> list[dict[str, str]]:
    """Rows of ``sacctmgr --parsable2`` and the like: a header, then values with ``|`` between."""
    return list(csv.DictReader(text.splitlines(), delimiter="|"))


def host_gpus(cluster: Cluster) -> int:
    """How many GPUs of this machine containers can be given; skips the test if there are none."""
    try:
        return len(Host.of(cluster.engine.info).gpus())
    except UsageError as error:
        pytest.skip(error.reason)


def cpus_to_assign(cluster: Cluster) -> int:
    """How many CPUs of this machine containers can be given as their own."""
    return len(Host.of(cluster.engine.info).cpu_numbers)


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this machine say that it has so many GPUs."""
    for method in ("gpu_names", "gpus"):
        monkeypatch.setattr(Host, method, lambda self: ["NVIDIA H200"] * count)


def give_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give containers device files with the names that the toolkit gives GPUs, instead of GPUs."""

    def stand_ins(part):
        return {"devices": [f"/dev/null:/dev/nvidia{i}" for i in part.gpu_ids]}

    monkeypatch.setattr("slurmbed.engine.overlay.gpu_devices", stand_ins)
