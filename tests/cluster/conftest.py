"""Clusters of the tests' own, one of a kind for each worker, by the fixtures of slurmbed's pytest plugin."""

from pathlib import Path

import pytest

from harness import clusters, engine, internals, job_images, jobs
from harness.names import NAME
from slurmbed import Settings

HERE = Path(__file__).parent
# These take longest, so they are handed to workers first; a worker takes a file at a time.
LONGEST_FIRST = (
    "test_side_by_side.py",  # before others have clusters: an engine has addresses for about thirty
    *("test_lessons.py", "test_more_lessons.py", "test_survive.py", "test_commands.py", "test_launchers.py"),
    *("test_elastic.py", "test_mpi_and_deepspeed.py", "test_campus.py", "test_torchrun.py", "test_mnist.py"),
    *("test_interrupted.py", "test_job_containers.py", "test_training_in_containers.py"),
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
def slurm_name() -> str:
    return NAME


@pytest.fixture(scope="session")
def slurm_settings(image, workspace) -> Settings:
    """Two nodes of two CPUs, so that two ranks can share one. A test that changes the cluster puts it back."""
    return internals.settings(NAME, nodes=2, cpus=2, memory="2G", workspace=workspace)


@pytest.fixture(scope="session")
def pod_workspace(tmp_path_factory) -> Path:
    return clusters.copy_of_workspace(tmp_path_factory.mktemp("pod"))


@pytest.fixture(scope="session")
def pod_of_all(slurm_start, pod_workspace):
    """Four nodes, each with 8 emulated GPUs and 8 CPUs, for launchers. A test that changes it puts it back."""
    with slurm_start("pod", nodes=4, cpus=8, gpus="emulated:8", workspace=pod_workspace) as cluster:
        yield cluster


@pytest.fixture
def pod(pod_of_all):
    """As pod_of_all; left idle, whatever became of the test's jobs, so that the next one's are on the first nodes."""
    yield pod_of_all
    pod_of_all.slurm.runner(["scancel", "--user=alice"]).check()
    jobs.wait_until_idle(pod_of_all)


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
def faulty_of_all(slurm_start, faulty_workspace):
    """Two nodes with two emulated GPUs each and no nvidia-smi, whose loss is noticed sooner than elsewhere."""
    with slurm_start("faults", config=HERE / "faults.yaml", nvidia_smi=False, workspace=faulty_workspace) as cluster:
        yield cluster


@pytest.fixture
def faulty(faulty_of_all):
    """As faulty_of_all; without jobs again afterwards. Where a test needs slurm_faults, this is its slurm_cluster."""
    yield faulty_of_all
    faulty_of_all.slurm.runner(["scancel", "--user=alice"]).check()


@pytest.fixture(scope="module")
def port_of_call(image, slurm_start, tmp_path_factory):
    """Two nodes with containers in jobs, and a registry."""
    internals.require_containers_in_jobs(image)
    workspace = clusters.copy_of_workspace(tmp_path_factory.mktemp("containers"))
    shape = {"nodes": 2, "cpus": 2, "memory": "1G", "containers": True}
    with slurm_start("containers", workspace=workspace, **shape) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ship(port_of_call) -> str:
    """The image's name in the registry, as the host says it."""
    name = f"localhost:{engine.port(port_of_call, 'registry', 5000)}/ship:1"
    job_images.make(port_of_call, name, job_images.SHIP, job_images.OF_SHIP)
    engine.docker("push", "--quiet", name, timeout=120)
    job_images.save(port_of_call, name, "ship.tar")
    engine.docker("rmi", name)
    return name


@pytest.fixture
def srun(port_of_call, ship):
    """Run a step in the image ship as alice; what came of it."""

    def srun(script: str, *words: str, image: str = ship, user: str = "alice"):
        of_image = [f"--container-image={image}"] if image else []
        return port_of_call.as_user(user)(["srun", "--quiet", *of_image, *words, "sh", "-c", script])

    return srun


@pytest.fixture(scope="module")
def torch(port_of_call):
    """The name in Docker of an image with torch."""
    name = f"{port_of_call.name}-torch"
    job_images.make(port_of_call, name, job_images.TORCH, ["ENV PATH=/usr/local/bin:/usr/bin:/bin"])
    yield name
    engine.docker("rmi", name)


@pytest.fixture(scope="module")
def torch_file(port_of_call, torch) -> str:
    """The same image as a file that jobs run: to push it takes half a minute."""
    return job_images.save(port_of_call, torch, "torch.tar")
