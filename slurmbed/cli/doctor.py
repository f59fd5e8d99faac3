"""`slurmbed doctor`: what this machine has for a cluster, one line a check."""

import platform
import sys
from collections.abc import Callable

import click

from slurmbed.cli.console import console
from slurmbed.cluster.host import Host, ca_bundle, job_uid
from slurmbed.engine.client import Engine
from slurmbed.engine.compose import compose_version
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.project import default_workspace


def engine() -> str:
    return f"Docker engine {Engine().version()}"


def compose() -> str:
    return f"Docker Compose {compose_version()}"


def resources() -> str:
    host = Host.of(Engine().info)
    host.check_disk(images_there=False)
    disk = "unknown" if host.free_disk is None else f"{host.free_disk} MiB"
    return f"{host.cpus} CPUs, {host.memory} MiB of memory, free disk for images: {disk}"


def graphics() -> str:
    return describe_gpus(Host.of(Engine().info))


def describe_gpus(host: Host) -> str:
    try:
        return f"GPUs for nodes: {', '.join(host.gpus())}"
    except UsageError as error:  # a cluster needs none
        return f"GPUs for nodes: {error.reason}"


def ids() -> str:
    return f"jobs run as uid {job_uid(default_workspace())}; CA bundle for builds: {ca_bundle()}"


CHECKS: tuple[Callable[[], str], ...] = (engine, compose, resources, graphics, ids)


@click.command()
def doctor() -> None:
    """Check this machine. Exit status 1 if a check failed."""
    console.print(f"ok    Python {platform.python_version()} on {platform.platform()}", highlight=False)
    failed = False
    for check in CHECKS:
        try:
            console.print(f"ok    {check()}", highlight=False)
        except SlurmbedError as error:
            failed = True
            console.print(f"FAIL  {check.__name__}: {error}", markup=False, highlight=False)
    if failed:
        console.print("make up mends what it can", highlight=False)
    sys.exit(failed)
