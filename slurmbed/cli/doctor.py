"""`slurmbed doctor`: checks of this machine, one line each."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from slurmbed.cli.console import console
from slurmbed.cluster.host import Host, ca_bundle, job_uid
from slurmbed.cluster.namespaces import refusal, remedy
from slurmbed.cluster.settings import DEFAULT_FLAVOR
from slurmbed.cluster.transfer import sizes
from slurmbed.engine.client import Engine, EngineInfo
from slurmbed.engine.compose import compose_version
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.project import command, default_workspace, option


def engine() -> str:
    found = Engine()
    return f"Docker engine {found.version()} on {found.info.system}, {found.info.architecture}"


def compose() -> str:
    return f"Docker Compose {compose_version()}"


def resources() -> str:
    host = Host.of(Engine().info)
    host.check_disk(DEFAULT_FLAVOR, images_there=False)
    disk = "unknown" if host.free_disk is None else f"{host.free_disk} MiB"
    return f"{host.cpus} CPUs, {host.memory} MiB of memory, free disk for images: {disk}"


def graphics() -> str:
    return describe_gpus(Host.of(Engine().info))


def describe_gpus(host: Host) -> str:
    try:
        return f"GPUs for nodes: {', '.join(host.gpus())}"
    except UsageError as error:  # a cluster needs none
        return f"GPUs for nodes: {error.reason}"


def containers() -> str:
    found = Engine()
    made = sorted(name for name in sizes(found) if name.startswith("slurmbed-node:"))
    if not made:
        return "containers in jobs: not tried, because no image is built yet"
    if reason := refusal(made[0], Host.of(found.info).apparmor):  # a cluster needs none
        return f"containers in jobs: {option('containers', True)} does not work here: {reason}; {remedy()}"
    return f"containers in jobs: {option('containers', True)} works here"


def ids() -> str:
    uid = job_uid(default_workspace(), Engine().info.maps_users)
    return f"jobs run as uid {uid}; CA bundle for builds: {ca_bundle()}"


def notes(info: EngineInfo, environment: Mapping[str, str], workspace: Path) -> Iterator[str]:
    """What is unusual here, what slurmbed does about it, and what is left to do."""
    if info.maps_users:
        kind = "rootless" if "rootless" in info.security else "userns-remap"
        yield f"{kind}: files that jobs write belong to another user of this machine; root in a cluster can remove them"
        if notice := Host.of(info).notice(workspace):
            yield notice
    if "selinux" in info.security:
        yield (
            "SELinux: the workspace and the mounts of a configuration file get the label of containers (`:z`); "
            "choose folders that no other service uses, without a colon in their names"
        )
    if "Docker Desktop" in info.system:
        yield "Docker Desktop: CPUs, memory and disk are those of its virtual machine; change them in its settings"
        yield "Docker Desktop shares the folders that its settings name; keep the workspace in one of them"
    if info.architecture not in ("x86_64", "amd64"):
        pypi = option("torch", "pypi")
        yield f"{info.architecture}: images are built for it; with {pypi} torch may come without CUDA"
    if ignored := sorted(name for name in environment if name.startswith("COMPOSE_")):
        yield f"slurmbed ignores {', '.join(ignored)}; a cluster's name is {option('name', '..')}"
    if through := sorted(name for name in environment if name.lower() in ("http_proxy", "https_proxy")):
        yield f"builds and the base image use {', '.join(through)}"
        if not info.proxies:
            yield "the engine pulls without a proxy; to give it one: https://docs.docker.com/engine/daemon/proxy/"


CHECKS: tuple[Callable[[], str], ...] = (engine, compose, resources, graphics, containers, ids)


def unusual() -> list[str]:
    try:
        return list(notes(Engine().info, os.environ, default_workspace()))
    except SlurmbedError:  # said above
        return []


@click.command()
def doctor() -> None:
    """Check this machine. Exit status 1 if a check failed.

    \b
    slurmbed doctor
    """
    console.print(f"ok    Python {platform.python_version()} on {platform.platform()}", highlight=False)
    failed = False
    for check in CHECKS:
        try:
            console.print(f"ok    {check()}", highlight=False)
        except SlurmbedError as error:
            failed = True
            console.print(f"FAIL  {check.__name__}: {error}", markup=False, highlight=False)
    for note in unusual():
        console.print(f"note  {note}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{command('up')} fixes what it can", highlight=False)
    sys.exit(failed)
