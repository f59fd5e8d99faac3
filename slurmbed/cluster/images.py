"""The images of a cluster: their names, and how they are built."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from slurmbed.cluster.host import ca_bundle
from slurmbed.cluster.settings import IMAGES_PROJECT, Choices
from slurmbed.engine.compose import Compose
from slurmbed.engine.overlay import CHOICES_LABEL, REGISTRY, REST
from slurmbed.engine.snapshot import Snapshot
from slurmbed.process import run
from slurmbed.project import ROOT

KINDS = ("db", "control", "node")


@cache
def digest(root: Path = ROOT) -> str:
    """12 hex digits that change with every file that an image is built from: the Dockerfile and its context.

    It is part of the tag, so an image that exists is not built again, and clones with other files use other tags.
    """
    found = hashlib.sha256()
    for path in inputs(root):
        content = path.read_bytes()
        mode = path.stat().st_mode & 0o100  # what git keeps of it
        found.update(f"{path.relative_to(root)} {mode} {len(content)}\n".encode() + content)
    return found.hexdigest()[:12]


def inputs(root: Path) -> Iterator[Path]:
    """The files that images are built from: .dockerignore names what is in the build's context."""
    yield root / "Dockerfile"
    lines = (root / ".dockerignore").read_text().splitlines()
    for name in sorted(line[1:] for line in lines if line.startswith("!")):
        path = root / name
        yield from sorted(filter(is_input, path.rglob("*"))) if path.is_dir() else [path]


def is_input(path: Path) -> bool:
    """Whether a path below one that .dockerignore names is part of the context: bytecode is not."""
    return path.is_file() and "__pycache__" not in path.parts


def tag(choices: Choices) -> str:
    return f"{choices.tag}-{choices.digest or digest()}"


def image(kind: str, choices: Choices) -> str:
    """The name of one of a cluster's images; ``kind`` is db, control or node."""
    return f"slurmbed-{kind}:{tag(choices)}"


def missing(choices: Choices, snapshot: Snapshot) -> list[str]:
    return [name for kind in KINDS if (name := image(kind, choices)) not in snapshot.images]


def keep(choices: Choices, snapshot: Snapshot, tag: Callable[[str, str], None]) -> bool:
    """Retag the images that the cluster's containers use. Returns True if a tag was missing or on another image.

    Another clone may have built its own images under the same tags, or removed the tags. Compose goes by tags, and
    would recreate all containers under their jobs. Nothing is retagged for containers without a record of their
    choices, such as those that Compose alone made.

    Args:
        choices: what the containers were made with.
        tag: gives the image with an id a tag.
    """
    if not snapshot.choices:
        return False
    alike = [each for each in snapshot.containers if each.labels.get(CHOICES_LABEL) == snapshot.choices]
    used = {image(kind_of(each.service), choices): each.image_id for each in alike}
    lost = {name: image_id for name, image_id in used.items() if snapshot.images.get(name) != image_id}
    for name, image_id in lost.items():
        tag(image_id, name)
    return bool(lost)


def kind_of(service: str) -> str:
    if service == "db":
        return "db"
    return "control" if service in ("slurmdbd", "slurmctld", REST, REGISTRY) else "node"


def build(choices: Choices, first: bool, say: Callable[[str], None], install: Callable[[], None]) -> None:
    """Make the base image and the images. The first build shows its progress.

    Raises:
        CommandError: with the last lines of the build.
    """
    base = [str(ROOT / "scripts" / "base-image"), choices.suite]
    run(base, timeout=900, capture=False).check("could not pull or build the base image (see above)")
    say("building the images: a few minutes the first time, seconds later")
    # Compose labels images with the project: under one name for all clusters, they are the same images.
    compose = Compose(IMAGES_PROJECT, install)
    arguments = ("--progress", "auto" if first else "plain", "build")
    environment = build_environment(choices)
    built = compose.with_overlay({"services": {}}, environment, *arguments, timeout=3600, capture=not first)
    built.check("the images could not be built")


def build_environment(choices: Choices) -> dict[str, str]:
    """The variables of docker-compose.yml that concern images."""
    return {
        "SLURMBED_TAG": tag(choices),
        "SLURMBED_SUITE": choices.suite,
        "SLURMBED_FLAVOR": choices.flavor,
        "SLURMBED_TORCH": choices.torch,
        "SLURMBED_CA_BUNDLE": ca_bundle(),
    }
