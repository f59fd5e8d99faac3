"""`slurmbed images`: the images that clusters are made from."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from slurmbed.cli.console import console, print_json, say, show_columns
from slurmbed.cli.options import with_settings
from slurmbed.cluster import images as tags
from slurmbed.cluster import transfer
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import with_asked
from slurmbed.cluster.settings import IMAGES_PROJECT, Choices, Settings

of_images: Callable = with_settings("slurm flavor torch", of_cluster=False)


@click.group()
def images() -> None:
    """Build the images of clusters, or copy them by a file or a registry.

    The tag holds a digest of the files that the images are built from. Another version of slurmbed has another tag.

    \b
    slurmbed images build && slurmbed images save images.tar
    slurmbed images load images.tar && slurmbed up
    SLURMBED_REGISTRY=registry.example.org/me slurmbed up
    """


def look(settings: Settings, install: bool = False) -> tuple[Cluster, Choices]:
    """A cluster to ask the engine with, and the choices that say which images are meant.

    Args:
        install: install an engine if there is none.
    """
    choices = with_asked(Choices(), settings)
    cluster = Cluster(say=say)
    if install:
        cluster.ensure_engine()
    cluster.require_engine()
    return cluster, choices


@images.command()
@of_images
def build(settings: Settings) -> None:
    """Build the images that are missing."""
    cluster, choices = look(settings, install=True)
    cluster.build(choices)
    for name in transfer.require(choices, cluster.look()):
        click.echo(name)


@images.command()
@of_images
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def save(settings: Settings, file: Path) -> None:
    """Write the images to FILE, a tar file."""
    cluster, choices = look(settings)
    transfer.save(transfer.require(choices, cluster.snapshot), file)
    console.print(f"wrote {file}: {file.stat().st_size >> 20} MiB", soft_wrap=True, highlight=False)


@images.command()
@of_images
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def load(settings: Settings, file: Path) -> None:
    """Read images from FILE, written by `images save`."""
    _, choices = look(settings, install=True)
    found = transfer.load(file)
    for name in found:
        click.echo(name)
    if absent := [name for name in transfer.names(choices) if name not in found]:
        say(f"not in {file}; built when a cluster needs them: {', '.join(absent)}")


@images.command()
@of_images
@click.argument("registry")
def push(settings: Settings, registry: str) -> None:
    """Push the images to REGISTRY, like registry.example.org/me. Run `docker login` first."""
    registry = transfer.registry_name(registry)
    cluster, choices = look(settings)
    transfer.push(transfer.require(choices, cluster.snapshot), registry, say)


@images.command()
@of_images
@click.argument("registry")
def pull(settings: Settings, registry: str) -> None:
    """Pull the images from REGISTRY. With SLURMBED_REGISTRY=REGISTRY, `up` does the same."""
    registry = transfer.registry_name(registry)
    cluster, choices = look(settings, install=True)
    with cluster.lock("images pull", IMAGES_PROJECT):
        transfer.pull(transfer.names(choices), registry, say)


@images.command("tag")
@of_images
def tag(settings: Settings) -> None:
    """Print the tag of the images that a new cluster would have, as a key for a cache. Needs no engine."""
    click.echo(tags.tag(with_asked(Choices(), settings)))


@images.command("list")
@of_images
@click.option("--json", "as_json", is_flag=True, help="print them as JSON")
def list_images(settings: Settings, as_json: bool) -> None:
    """Show the images that a new cluster would have, and all other images of slurmbed."""
    cluster, choices = look(settings)
    found = transfer.listed(choices, transfer.sizes(cluster.engine))
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [(each.name, each.state, f"{each.bytes // 10**6} MB" if each.bytes else "") for each in found]
    show_columns([("IMAGE", "STATE", "SIZE"), *rows])
