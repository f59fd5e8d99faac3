"""Images from a file or a registry, for machines that need not build them: a cache of CI, a class."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmbed.cluster import images
from slurmbed.cluster.settings import Choices
from slurmbed.engine.client import Engine
from slurmbed.engine.overlay import OURS
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import run

REGISTRY = "SLURMBED_REGISTRY"
"""Variable with the registry that images are pulled from instead of being built."""
TIMEOUT = 3600  # seconds for one image


def registry_name(text: str) -> str:
    """The prefix of image names in a registry: registry.example.org/me, or localhost:5000.

    Raises:
        UsageError: Docker would not accept it.
    """
    if not re.fullmatch(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*", text):
        raise UsageError(f"{text}: not a registry", "write host:port or host/folder, like registry.example.org/me")
    return text


def registry_of_environment() -> str:
    """The registry to pull from; "" if there is none."""
    return registry_name(found) if (found := os.environ.get(REGISTRY)) else ""


def names(choices: Choices) -> list[str]:
    return [images.image(kind, choices) for kind in images.KINDS]


def require(choices: Choices, snapshot: Snapshot) -> list[str]:
    """The names of a cluster's images. UsageError if one is missing."""
    if absent := images.missing(choices, snapshot):
        hint = f"slurmbed images build --slurm {choices.slurm} --flavor {choices.flavor} --torch {choices.torch}"
        raise UsageError(f"there is no image {', '.join(absent)}", hint)
    return names(choices)


@dataclass(frozen=True)
class ListedImage:
    """An image: here or missing if a new cluster needs it, or other; ``bytes`` is None if it is missing."""

    name: str
    state: str
    bytes: int | None


def listed(choices: Choices, sizes: Mapping[str, int]) -> list[ListedImage]:
    """The images that a new cluster needs, then all others of slurmbed."""
    wanted = names(choices)
    needed = [ListedImage(name, "here" if name in sizes else "missing", sizes.get(name)) for name in wanted]
    return needed + [ListedImage(name, "other", sizes[name]) for name in sorted(sizes) if name not in wanted]


def sizes(engine: Engine) -> dict[str, int]:
    """Bytes of each of slurmbed's images by name, as `docker images` gives them."""
    found = {name: each["Size"] for each in engine.images(OURS) for name in each["RepoTags"] or ()}
    return {name: size for name, size in found.items() if name.startswith("slurmbed-")}


def save(wanted: Sequence[str], file: Path) -> None:
    """Write images to a tar file."""
    run(["docker", "save", "--output", str(file), *wanted], timeout=TIMEOUT).check()


def load(file: Path) -> list[str]:
    """Load the images of a file that ``save`` wrote. Returns their names."""
    return loaded(run(["docker", "load", "--input", str(file)], timeout=TIMEOUT).check().stdout)


def loaded(output: str) -> list[str]:
    """The names that `docker load` prints."""
    return re.findall(r"^Loaded image: (\S+)$", output, re.MULTILINE)


def push(wanted: Sequence[str], registry: str, say: Callable[[str], None]) -> None:
    """Push images to a registry, under their own names."""
    for name in wanted:
        remote = f"{registry}/{name}"
        say(f"pushing {remote}")
        docker("tag", name, remote)
        try:
            docker("push", remote)
        finally:
            docker("rmi", remote)  # the name alone: the image has another


def pull(wanted: Sequence[str], registry: str, say: Callable[[str], None]) -> None:
    """Pull images from a registry. CommandError at the first that cannot be pulled."""
    for name in wanted:
        remote = f"{registry}/{name}"
        say(f"pulling {remote}")
        docker("pull", remote)
        docker("tag", remote, name)
        docker("rmi", remote)


def docker(*arguments: str) -> None:
    run(["docker", *arguments], timeout=TIMEOUT).check()


def obtain(
    choices: Choices, first: bool, say: Callable[[str], None], install: Callable[[], None], registry: str = ""
) -> None:
    """Pull the images from the registry, if one is given; build them if that fails.

    Args:
        first, install: as ``images.build``.
    """
    if registry:
        try:
            return pull(names(choices), registry, say)
        except SlurmbedError as error:
            say(f"could not pull all images from {registry}; building them: {error.reason}")
    return images.build(choices, first, say, install)
