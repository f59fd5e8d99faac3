"""All that the tests use of slurmbed besides its commands and its public names: one place to change."""

from pathlib import Path

import pytest

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import Settings
from slurmbed.engine.compose import ROOT
from slurmbed.errors import UsageError
from slurmbed.slurm.client import Slurm, block_layout, placement, require_separate_nodes
from slurmbed.slurm.parse import ACTIVE_STATES, Job, parse_ranks, parse_table
from slurmbed.spec import gpus

__all__ = [
    "ACTIVE_STATES",
    "ROOT",
    "Cluster",
    "Job",
    "Settings",
    "Slurm",
    "block_layout",
    "parse_ranks",
    "parse_table",
    "placement",
    "require_separate_nodes",
]


def settings(name: str, **words: object) -> Settings:
    """The settings of a cluster, from values like ``nodes=2, retain=True``."""
    as_typed = {key: "1" if value is True else str(value) for key, value in words.items()}
    return Settings(name=name, **as_typed)


def build_images(cluster: Cluster) -> str:
    """Build the images if need be; returns the node image's name. Another cluster's start then need not wait for it."""
    plan = cluster.plan()
    cluster.build(plan)
    return plan.node_image


def wait_ready(cluster: Cluster, nodes: int) -> None:
    """Block until slurmctld answers, all nodes work and a job ran; NotReady if a container has ended."""
    cluster.readiness.wait_for_controller()
    cluster.readiness.wait_ready(nodes)


def write(cluster: Cluster, file: str, content: bytes) -> Path:
    """Write a file of the workspace as the commands write their reports."""
    return cluster.write(file, content)


def host_gpus() -> int:
    """How many GPUs of this machine containers can be given; skips the test if there are none."""
    try:
        return len(gpus.on_host())
    except UsageError as error:
        pytest.skip(error.reason)


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this machine say that it has so many GPUs."""
    monkeypatch.setattr(gpus, "listed", lambda: ["NVIDIA H200"] * count)
    monkeypatch.setattr(gpus, "on_host", gpus.listed)


def give_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give containers device files with the names that the toolkit gives GPUs, instead of GPUs."""

    def stand_ins(part):
        return {"devices": [f"/dev/null:/dev/nvidia{i}" for i in part.gpu_ids]}

    monkeypatch.setattr("slurmbed.engine.compose.gpu_devices", stand_ins)
