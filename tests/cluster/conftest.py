"""A cluster of the tests' own, brought up and taken down by pytest-docker. A user's cluster is never touched."""

import json
import os
import shutil
from pathlib import Path

import pytest

from slurmbed.cluster import Cluster
from slurmbed.compose import BASE_FILE, Slice, overlay
from slurmbed.host import job_uid
from slurmbed.plan import WORKSPACE, Plan, Settings
from slurmbed.training import prepare_text

NAME = "slurmbed-test"
NODES = 2
SLICE = Slice(cpus=2, memory=1024, cpu_limit=1, memory_limit=1024)  # two CPUs, so that two ranks can share a node


@pytest.fixture(scope="session")
def image() -> str:
    """The node image; built first, so that a cluster's start does not wait for it."""
    cluster = Cluster(Settings(name=NAME), print)
    plan = cluster.plan()
    cluster.build(plan)
    return plan.node_image


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    """A copy, so that runs and job ids of the tests never meet the user's."""
    return shutil.copytree(
        WORKSPACE,
        tmp_path_factory.mktemp("cluster") / "workspace",
        ignore=lambda d, names: ([name for name in names if name != ".gitignore"] if Path(d).name == "runs" else []),
    )


@pytest.fixture(scope="session")
def plan(image, workspace) -> Plan:
    version, _, torch = image.rpartition(":")[2].partition("-")
    return Plan(
        exists=False,
        slices=[SLICE] * NODES,
        slurm=version,
        torch=torch,
        ssh_port="",
        workspace=workspace,
        job_uid=job_uid(workspace),
    )


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    return NAME


@pytest.fixture(scope="session")
def docker_compose_file(plan, tmp_path_factory) -> list[str]:
    file = tmp_path_factory.mktemp("compose") / "overlay.json"
    file.write_text(json.dumps(overlay(plan.slices)))
    os.environ.update(plan.environment())
    return [str(BASE_FILE), str(file)]


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    return ["down --volumes --timeout 2", "up --detach --no-build"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down --volumes --remove-orphans --timeout 2"]


@pytest.fixture(scope="session")
def cluster(docker_services) -> Cluster:
    """The cluster, ready. A test that changes it puts it back."""
    cluster = Cluster(Settings(name=NAME), print)
    cluster.readiness.wait_for_controller()
    cluster.readiness.wait_ready(NODES)
    return cluster


@pytest.fixture(scope="session")
def text(workspace) -> str:
    """The prepared text, as a path inside the workspace."""
    return str(Path(prepare_text(workspace)["file"]).relative_to(workspace))


@pytest.fixture
def run_job(cluster, workspace):
    """Submit as alice, wait for the end, return job and log; a job that fails shows its log."""

    def run_job(*words: str, timeout: float = 120) -> tuple:
        job_id = cluster.slurm.submit("--output=runs/%j.log", *words)
        read = (workspace / "runs" / f"{job_id}.log").read_text
        return cluster.slurm.wait_completed(job_id, timeout, log=read), read()

    return run_job
