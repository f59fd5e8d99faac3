"""A cluster of the tests' own, brought up and taken down by pytest-docker. A user's cluster is never touched."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmbed.cluster.cluster import USER, Cluster
from slurmbed.cluster.host import job_uid
from slurmbed.cluster.plan import WORKSPACE, Plan, Settings
from slurmbed.course import data
from slurmbed.engine.compose import BASE_FILE, ROOT, Slice, overlay
from slurmbed.wait import Pending, wait_until

NAME = "-".join(filter(None, ("slurmbed-test", os.environ.get("PYTEST_XDIST_WORKER"))))  # each worker has its own
NODES = 2
SLICE = Slice(cpus=2, memory=1024, cpu_limit=1, memory_limit=1024)  # two CPUs, so that two ranks can share a node


def typed_environment() -> dict[str, str]:
    """The environment of a command as a user types it, not as a part of the `make test` that may be running this."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}


def make(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess:
    """make as a user types it."""
    env, argv = {**typed_environment(), **environment}, ["make", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="session")
def image() -> str:
    """The node image; built first, so that a cluster's start does not wait for it."""
    cluster = Cluster(Settings(name=NAME), print)
    plan = cluster.plan()
    cluster.build(plan)
    return plan.node_image


def copy_of_workspace(folder: Path) -> Path:
    """So that runs and job ids of a tests' cluster never meet the user's, or another's."""
    return shutil.copytree(WORKSPACE, folder / "workspace", ignore=written_by_jobs, symlinks=True)


def written_by_jobs(folder: str, names: list[str]) -> list[str]:
    if Path(folder) == WORKSPACE:
        return [name for name in names if name in ("log", "logs", "checkpoints")]
    return [name for name in names if name != ".gitignore"] if Path(folder).name == "runs" else []


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    return copy_of_workspace(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def plan(image, workspace) -> Plan:
    version, torch = image.rpartition(":")[2].split("-")
    return Plan(
        exists=False,
        slices=[SLICE] * NODES,
        slurm=version,
        torch=torch,
        launchers="1",
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
def text(cluster) -> str:
    """The prepared text, as a path inside the workspace."""
    return data.text(cluster).path


@pytest.fixture(scope="session")
def pod_workspace(tmp_path_factory) -> Path:
    return copy_of_workspace(tmp_path_factory.mktemp("pod"))


@pytest.fixture(scope="session")
def pod_of_all(image, pod_workspace):
    """Four nodes, each with 8 emulated GPUs and 16 CPUs, for launchers. A test that changes it puts it back."""
    shape = {"nodes": "4", "cpus": "16", "gpus": "emulated:8"}
    cluster = Cluster(Settings(name=f"{NAME}-pod", workspace=str(pod_workspace), **shape), print)
    cluster.up()
    yield cluster
    cluster.clean()


@pytest.fixture
def pod(pod_of_all):
    """As pod_of_all; left idle, whatever became of the test's jobs, so that the next one's are on the first nodes."""
    yield pod_of_all
    pod_of_all.slurm.runner(["scancel", f"--user={USER}"]).check()

    def idle() -> None:
        if busy := [f"{node.name} {node.state}" for node in pod_of_all.slurm.nodes() if not node.is_idle]:
            raise Pending(", ".join(busy))

    wait_until(idle, what="the pod is idle", timeout=120)


def job_runner(cluster: Cluster, workspace: Path):
    def run_job(*words: str, timeout: float = 120) -> tuple:
        job_id = cluster.slurm.submit("--output=runs/%j.log", *words)
        read = (workspace / "runs" / f"{job_id}.log").read_text
        return cluster.slurm.wait_completed(job_id, timeout, log=read), read()

    return run_job


@pytest.fixture
def run_job(cluster, workspace):
    """Submit as alice, wait for the end, return job and log; a job that fails shows its log."""
    return job_runner(cluster, workspace)


@pytest.fixture
def pod_job(pod, pod_workspace):
    """As run_job, on the pod."""
    return job_runner(pod, pod_workspace)


@pytest.fixture
def failing(pod_workspace) -> str:
    """A program of which rank 1 fails while the others wait for it."""
    (pod_workspace / "failing.py").write_text(
        "import sys, time, env\nif env.read().rank == 1: sys.exit('rank 1 gives up')\ntime.sleep(600)\n"
    )
    return "failing.py"
