"""`make train CONTAINER=IMAGE`: an image of this machine's Docker is pushed to the cluster's registry for the nodes."""

from rich.console import Console

from slurmbed.cluster import transfer
from slurmbed.cluster.cluster import Cluster
from slurmbed.errors import UsageError
from slurmbed.process import run
from slurmbed.project import command, option


def want_containers(cluster: Cluster) -> None:
    """Have a new cluster made with containers in jobs. UsageError if the cluster exists without them.

    Adding them recreates its containers under its jobs, so the user has to ask for it.
    """
    if not cluster.snapshot.containers:
        cluster.settings = cluster.settings.model_copy(update={"containers": True})
    elif not cluster.choices().containers:
        again = command("up", name=cluster.name, containers=True)
        raise UsageError(
            f"{option('container')}: jobs of the cluster {cluster.name} cannot run in containers",
            f"{again} recreates its nodes with containers; running jobs start again",
        )


def provide(cluster: Cluster, console: Console, image: str) -> str:
    """The image's name for `srun --container-image`. An image that Docker here has is pushed first.

    Docker pushes only what the registry does not have yet.

    Raises:
        CommandError: it cannot be pushed.
    """
    if not run(["docker", "image", "inspect", "--format={{.Id}}", "--", image], timeout=60).ok:
        tell(console, f"container: {image}, which Docker on this machine does not have: the nodes pull or open it")
        return image
    name = name_in_registry(image, f"localhost:{cluster.choices().registry_port}")
    tell(console, f"container: pushing {image} of Docker on this machine to the cluster's registry as {name}")
    if name == image:
        transfer.docker("push", name)
    else:
        transfer.docker("tag", image, name)
        try:
            transfer.docker("push", name)
        finally:
            transfer.docker("rmi", name)  # the name alone: the image has another
    return name


def tell(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def name_in_registry(image: str, registry: str) -> str:
    """The name of Docker's image in another registry: its name without the registry that it came from.

    >>> name_in_registry("nvcr.io/nvidia/pytorch:24.11-py3", "localhost:5000")
    'localhost:5000/nvidia/pytorch:24.11-py3'
    """
    first, slash, rest = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        image = rest
    return f"{registry}/{image.replace('@sha256:', ':')}"
