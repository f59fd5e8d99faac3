"""Containers in jobs, for `make bench`: how long a step takes to start in one, and a pull beside `docker pull`."""

from collections.abc import Iterator

from rich.table import Table

from dev import tables
from slurmbed.cluster import images
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Choices
from slurmbed.process import run

TIMEOUT = 600  # seconds for one command
PULLS, STEPS = 3, 10
BY_DOCKER, BY_NODE = "docker pull", "container-image pull"
BARE, OCI, IMAGE = "srun", "srun --container", "srun --container-image"


def measured(cluster: Cluster) -> Iterator[Table]:
    """Tables of pulls and of steps, by the image that slurmctld runs on."""
    image = push(cluster)
    yield tables.ratios("an image of one layer, from the cluster's registry", BY_DOCKER, pulls(cluster, image))
    yield tables.differences("a step that does nothing, on one node", BARE, steps(cluster, image))


def push(cluster: Cluster) -> str:
    """The name of an image in the registry, of one layer that Docker does not have."""
    name = f"localhost:{cluster.choices().registry_port}/bench"
    made = docker("create", images.image("control", Choices()))
    flatten = 'set -o pipefail; docker export "$1" | docker import - "$2"'
    try:
        run(["bash", "-c", flatten, "-", made, name], timeout=TIMEOUT).check()
    finally:
        docker("rm", made)
    docker("push", "--quiet", name)
    docker("rmi", name)
    return name


def docker(*words: str) -> str:
    return run(["docker", *words], timeout=TIMEOUT).check().stdout.strip()


def pulls(cluster: Cluster, image: str) -> dict[str, list[float]]:
    """Seconds to pull and unpack the image, where nothing of it is there."""
    taken: dict[str, list[float]] = {BY_DOCKER: [], BY_NODE: []}
    for _ in range(PULLS):
        taken[BY_DOCKER].append(tables.seconds(lambda: docker("pull", "--quiet", image)))
        docker("rmi", image)
        taken[BY_NODE].append(inside(cluster, f"timed container-image pull {image}")[0] / 1000)
        inside(cluster, f"container-image remove {image}")
    return taken


def steps(cluster: Cluster, image: str) -> dict[str, list[float]]:
    """Milliseconds of srun, in an allocation that is there. The image is there too."""
    inside(cluster, f"container-image bundle {image} ~/bundle")
    ways = {BARE: "srun", OCI: "srun --container=$HOME/bundle", IMAGE: f"srun --container-image={image}"}
    each = "; ".join(f"timed {way} true" for way in ways.values())
    rounds = f"for i in {{0..{STEPS}}}; do {each}; done"
    found = inside(cluster, f"export -f timed; salloc --quiet --nodes=1 bash -c '{rounds}'")
    first = len(ways)  # a round to get ready
    return {way: found[first + place :: len(ways)] for place, way in enumerate(ways)}


def inside(cluster: Cluster, script: str) -> list[float]:
    """Run a script on the login node; the milliseconds of each command after ``timed`` in it."""
    timed = (
        'timed() { local began=$EPOCHREALTIME; "$@" >&2 || exit; '
        'local ended=$EPOCHREALTIME; echo "took $((${ended/./} - ${began/./}))"; }; '
    )
    lines = cluster.slurm.runner(["bash", "-c", timed + script]).check().stdout.splitlines()
    return [int(line.split()[1]) / 1000 for line in lines if line.startswith("took ")]
