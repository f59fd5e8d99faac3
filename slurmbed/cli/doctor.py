"""`make doctor`: what this machine has for a cluster, one line a check."""

import argparse
import platform
import sys

from rich.console import Console

from slurmbed.cluster import host
from slurmbed.cluster.plan import WORKSPACE
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import run
from slurmbed.spec import gpus


def engine() -> str:
    return (
        "Docker engine "
        + run(["docker", "version", "--format", "{{.Server.Version}}"], timeout=30).check().stdout.strip()
    )


def compose() -> str:
    version = run(["docker", "compose", "version", "--short"], timeout=30).check("Compose v2 is needed").stdout.strip()
    return f"Docker Compose {version}"


def resources() -> str:
    found = host.Host.read()
    host.check_disk(found, images_there=False)
    disk = "unknown" if found.free_disk is None else f"{found.free_disk} MiB"
    return f"{found.cpus} CPUs, {found.memory} MiB of memory, free disk for images: {disk}"


def graphics() -> str:
    try:
        return f"GPUs for nodes: {', '.join(gpus.on_host())}"
    except UsageError as error:  # a cluster needs none
        return f"GPUs for nodes: {error.reason}"


def ids() -> str:
    return f"jobs run as uid {host.job_uid(WORKSPACE)}; CA bundle for builds: {host.ca_bundle()}"


def main(_: argparse.Namespace) -> None:
    """Print every check with its outcome; exit status 1 if one failed."""
    console, failed = Console(soft_wrap=True), False
    console.print(f"ok    Python {platform.python_version()} on {platform.platform()}", highlight=False)
    for check in (engine, compose, resources, graphics, ids):
        try:
            console.print(f"ok    {check()}", highlight=False)
        except SlurmbedError as error:
            failed = True
            console.print(f"FAIL  {check.__name__}: {error}", markup=False, highlight=False)
    if failed:
        console.print("make up tries to mend this where it can", highlight=False)
    sys.exit(failed)
