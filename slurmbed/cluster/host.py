"""What this machine has, and whether what the user asks for fits on it."""

import json
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from slurmbed.engine.compose import IMAGES_PROJECT, Slice
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import last_lines, run
from slurmbed.spec.memory import parse_memory

SUITES = {"24.11": "trixie", "26.05": "sid"}
"""Slurm version to the Debian suite that packages it."""

MAX_NODES = 256
MIB_PER_CPU = 64  # DefMemPerCPU in slurm.conf
DISK_FOR_IMAGES = 5 * 1024  # MiB: base, layers, build cache
DISK_FOR_CLUSTER = 512  # MiB: database, logs


@dataclass(frozen=True)
class Host:
    """The engine's machine: cores, memory in MiB, free disk in MiB where the engine keeps its data (None: unknown),
    and whether containers can be held to CPUs and memory there."""

    cpus: int
    memory: int
    free_disk: int | None
    limits_cpus: bool = True
    limits_memory: bool = True

    @classmethod
    def read(cls) -> "Host":
        answer = run(["docker", "info", "--format", "{{json .}}"], timeout=30)
        if not answer.ok:  # the client prints its half of the JSON even then
            raise SlurmbedError("the Docker engine does not answer", "make up starts it", last_lines(answer.stderr))
        info = json.loads(answer.stdout)
        try:
            free = shutil.disk_usage(info["DockerRootDir"]).free >> 20
        except OSError:  # in Docker Desktop's virtual machine, or closed to this user
            free = None
        return cls(info["NCPU"], info["MemTotal"] >> 20, free, info["CpuCfsQuota"], info["MemoryLimit"])


def whole_number(name: str, text: str | int, low: int, high: int) -> int:
    if not re.fullmatch(r"\d+", str(text)) or not low <= int(text) <= high:
        raise UsageError(f"{name}={text}: not a whole number from {low} to {high}")
    return int(text)


def slice_for(
    host: Host, nodes: int, cpus: str = "", memory: str = "", taken: int = 0, kept: int = 0, least_cpus: int = 0
) -> Slice:
    """An honest slice of the host for each node, or what the user asked for, checked.

    Of ``nodes`` nodes ``kept`` are there already, with ``taken`` MiB; the others share the rest.

    More CPUs than the host has may be offered, to rehearse a larger machine; memory may not. Without ``cpus`` a node
    offers ``least_cpus`` or more: a rank on each of its GPUs takes one.

    Raises:
        UsageError: not a number, or more memory than the host has.
    """
    each_cpus = whole_number("CPUS", cpus, 1, 1024) if cpus else max(1, host.cpus // nodes, least_cpus)
    usable = host.memory * 3 // 4
    try:
        each_memory = parse_memory(memory) if memory else usable // nodes
        if not memory and nodes > kept:
            each_memory = min(each_memory, (host.memory - taken) // (nodes - kept))
    except ValueError as error:
        raise UsageError(f"MEMORY={error}", "MEMORY is what each node gets") from None
    total = taken + each_memory * (nodes - kept)
    if total > host.memory:
        raise UsageError(
            f"MEMORY={memory} for each of {nodes} nodes is {total} MiB; the host has {host.memory} MiB",
            f"leave MEMORY out, or up to MEMORY={usable // nodes}M",
        )
    if each_memory < each_cpus * MIB_PER_CPU:
        raise UsageError(
            f"{each_memory} MiB for a node of {each_cpus} CPUs: less than {MIB_PER_CPU} MiB a CPU",
            "ask for fewer NODES, CPUS or GPUS; nodes that are there keep their memory until: make clean",
        )
    cpu_limit = min(each_cpus, host.cpus) if host.limits_cpus else 0
    return Slice(each_cpus, each_memory, cpu_limit, each_memory if host.limits_memory else 0)


def suite(version: str) -> str:
    if version not in SUITES:
        raise UsageError(f"SLURM={version}: not a version known here", f"choose one of {', '.join(SUITES)}")
    return SUITES[version]


def check_name(name: str) -> None:
    """UsageError for a cluster's name that Compose would not take as a project's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,40}", name):
        raise UsageError(f"NAME={name}: not a cluster name", "use lower-case letters, digits, '-' and '_'")
    if name == IMAGES_PROJECT:
        raise UsageError(f"NAME={name}: the images are built under this name", "choose another one")


def check_disk(host: Host, images_there: bool) -> None:
    need = DISK_FOR_CLUSTER if images_there else DISK_FOR_IMAGES
    if host.free_disk is not None and host.free_disk < need:
        raise UsageError(
            f"{host.free_disk} MiB of disk are free where Docker keeps its data; {need} MiB are needed",
            "make room, for example with: docker builder prune",
        )


def check_port(port: str) -> None:
    """UsageError unless nobody listens on the port on the loopback interface; "" (any free one) passes."""
    if port:
        number = whole_number("SSH_PORT", port, 1, 65535)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", number))
            except OSError as error:
                raise UsageError(
                    f"SSH_PORT={port}: {error.strerror}", "leave SSH_PORT out, and a free port is chosen"
                ) from None


def job_uid(workspace: Path) -> int:
    """The uid that jobs run as, so that what they write is the user's: of sudo's caller, of this process, or, for
    root, of the workspace's owner (1000 if that is root too: jobs never run as root)."""
    candidates = (int(os.environ.get("SUDO_UID", 0)), os.getuid(), workspace.stat().st_uid, 1000)
    return next(uid for uid in candidates if uid)


def ca_bundle() -> str:
    """The host's CA bundle, or /dev/null."""
    named = (os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))
    for path in (*named, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"):
        if path and Path(path).is_file():
            return path
    return "/dev/null"


def ssh_public_key() -> str:
    """The user's public key, for ssh into the login node; "" if there is none."""
    keys = sorted(Path("~/.ssh").expanduser().glob("id_*.pub"))
    return keys[0].read_text().strip() if keys else ""
