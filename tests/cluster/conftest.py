"""Clusters of the tests' own, one of a kind for each worker, and what is in them."""

from pathlib import Path

import pytest

from harness import clusters, engine, internals, jobs
from harness.names import NAME

HERE = Path(__file__).parent
# These take longest, so they are handed to workers first; a worker takes a file at a time.
LONGEST_FIRST = (
    *("test_launchers.py", "test_lessons.py", "test_commands.py", "test_survive.py", "test_elastic.py"),
    *("test_torchrun.py", "test_mpi_and_deepspeed.py", "test_mnist.py", "test_campus.py", "test_interrupted.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def image() -> str:
    """The node image; built first, so that a cluster's start does not wait for it."""
    return internals.build_images(clusters.make_cluster(NAME))


@pytest.fixture(scope="session")
def slim_image(image) -> str:
    """The node image of the flavor slim; built after `image`, of which it is the beginning."""
    return internals.build_images(clusters.make_cluster(NAME, flavor="slim"))


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    return clusters.copy_of_workspace(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def cluster(image, workspace):
    """Two nodes of two CPUs, so that two ranks can share one. A test that changes the cluster puts it back."""
    with clusters.running(NAME, nodes=2, cpus=2, memory="2G", workspace=workspace) as cluster:
        yield cluster


@pytest.fixture
def run_job(cluster, workspace):
    """Submit as alice, wait for the end, return job and log; a job that fails shows its log."""
    return jobs.job_runner(cluster, workspace)


@pytest.fixture(scope="session")
def pod_workspace(tmp_path_factory) -> Path:
    return clusters.copy_of_workspace(tmp_path_factory.mktemp("pod"))


@pytest.fixture(scope="session")
def pod_of_all(image, pod_workspace):
    """Four nodes, each with 8 emulated GPUs and 8 CPUs, for launchers. A test that changes it puts it back."""
    shape = {"nodes": 4, "cpus": 8, "gpus": "emulated:8"}
    with clusters.running(f"{NAME}-pod", workspace=pod_workspace, **shape) as cluster:
        yield cluster


@pytest.fixture
def pod(pod_of_all):
    """As pod_of_all; left idle, whatever became of the test's jobs, so that the next one's are on the first nodes."""
    yield pod_of_all
    pod_of_all.slurm.runner(["scancel", "--user=alice"]).check()
    jobs.wait_until_idle(pod_of_all)


@pytest.fixture
def pod_job(pod, pod_workspace):
    """As run_job, on the pod."""
    return jobs.job_runner(pod, pod_workspace)


@pytest.fixture
def failing(pod_workspace) -> str:
    """A program of which rank 1 fails while the others wait for it."""
    (pod_workspace / "failing.py").write_text(
        "import sys, time\nfrom ranks import environment\n"
        "if environment.read().rank == 1: sys.exit('rank 1 gives up')\ntime.sleep(600)\n"
    )
    return "failing.py"


@pytest.fixture(scope="session")
def faulty_workspace(tmp_path_factory) -> Path:
    return clusters.copy_of_workspace(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def faulty_of_all(image, faulty_workspace):
    """Two nodes with two emulated GPUs each and no nvidia-smi, whose loss is noticed sooner than elsewhere."""
    config = HERE / "faults.yaml"
    with clusters.running(f"{NAME}-faults", config=config, nvidia_smi=False, workspace=faulty_workspace) as cluster:
        yield cluster


@pytest.fixture
def faulty(faulty_of_all):
    """As faulty_of_all; with both nodes and without jobs again afterwards."""
    yield faulty_of_all
    for service, state in engine.states(faulty_of_all.name).items():
        if state != "running":
            engine.start(faulty_of_all, service)
    faulty_of_all.slurm.runner(["scancel", "--user=alice"]).check()
    internals.wait_ready(faulty_of_all, 2)


@pytest.fixture
def submit():
    """Submit a job; cancelled in the end."""
    submitted: list[tuple] = []

    def submit(cluster, *words: str, script: str = "sleep 600") -> str:
        job_id = cluster.slurm.submit("--output=%j.log", *words, "--wrap", script)
        submitted.append((cluster, job_id))
        return job_id

    yield submit
    for cluster, job_id in submitted:
        cluster.slurm.cancel(job_id)
    for cluster, job_id in submitted:
        cluster.slurm.wait(job_id, 60)
