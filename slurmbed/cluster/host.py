"""The host: cores, memory, disk, GPUs, a free port, the user's uid, CA bundle."""

import os
import pwd
import shlex
import shutil
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmbed.engine.client import EngineInfo
from slurmbed.errors import UsageError
from slurmbed.process import run
from slurmbed.project import option
from slurmbed.spec.gpus import parse_gpus

DISK_FOR_IMAGES = {"slim": 1024, "torch": 4608, "full": 5120}  # MiB, by flavor: twice their layers, for the build
DISK_FOR_CLUSTER = 512  # MiB: database, logs
TOOLKIT = ("nvidia-ctk", "nvidia-container-runtime-hook")


@dataclass(frozen=True)
class Host:
    """The engine's machine.

    Args:
        memory: MiB.
        free_disk: MiB where the engine keeps its data; None if that is unknown.
        limits_cpus, limits_memory: whether containers can have limits of CPUs and memory.
        has_nvidia_runtime: whether Docker knows NVIDIA's runtime.
        maps_users: whether uids in containers are other uids on the host.
        selinux: True if SELinux lets containers use only what has their label.
        apparmor: True if an AppArmor profile confines containers.
        no_cgroups: why Slurm can make no cgroups in containers; empty if it can.
        cpu_numbers: the engine's numbers of its CPUs; empty if containers cannot have dedicated CPUs.
    """

    cpus: int
    memory: int
    free_disk: int | None = None
    limits_cpus: bool = True
    limits_memory: bool = True
    has_nvidia_runtime: bool = False
    maps_users: bool = False
    selinux: bool = False
    apparmor: bool = False
    no_cgroups: str = "unknown"
    cpu_numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, info: EngineInfo) -> "Host":
        return cls(
            cpus=info.cpus,
            memory=info.memory,
            free_disk=free_disk(info.data),
            limits_cpus=info.limits_cpus,
            limits_memory=info.limits_memory,
            has_nvidia_runtime="nvidia" in info.runtimes,
            maps_users=info.maps_users,
            selinux="selinux" in info.security,
            apparmor="apparmor" in info.security,
            no_cgroups=no_cgroups(info),
            cpu_numbers=cpu_numbers(info.cpus) if info.assigns_cpus else (),
        )

    def gpu_names(self) -> Sequence[str]:
        return gpu_names()

    def gpus(self) -> Sequence[str]:
        """Names of the GPUs that containers can be given, in nvidia-smi's order.

        Raises:
            UsageError: there is none, or no NVIDIA Container Toolkit.
        """
        names = self.gpu_names()
        if not names:
            raise UsageError("no NVIDIA GPU on this machine", f"{option('gpus', 2)} gives each node two emulated ones")
        if not self.has_nvidia_runtime and not any(map(shutil.which, TOOLKIT)):
            raise UsageError(
                f"Docker cannot give containers this machine's GPUs ({len(names)}): "
                "NVIDIA Container Toolkit is missing",
                "install nvidia-container-toolkit, then: "
                "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
            )
        return names

    def free_port(self, wanted: int) -> int:
        """That port of 127.0.0.1, or another one if it is taken."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for port in (wanted, 0):
                with suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    break
            return probe.getsockname()[1]

    def check_cgroups(self) -> None:
        """UsageError where containers may not make cgroups."""
        if self.no_cgroups:
            raise UsageError(
                f"{option('cgroups', True)}: {self.no_cgroups}",
                f"leave {option('cgroups')} out; without it Slurm limits the memory of jobs too",
            )

    def notice(self, workspace: Path) -> str:
        """What to do if the engine runs jobs as another user of this machine, who cannot write; else ""."""
        if not self.maps_users:
            return ""
        folders = [path for name in ("data", "runs") if (path := workspace / name).is_dir()] or [workspace]
        closed = [str(path) for path in folders if not path.stat().st_mode & stat.S_IWOTH]
        what = "this engine runs jobs as another user of this machine"
        return f"{what}; let them write: chmod a+rwx {shlex.join(closed)}" if closed else ""

    def check_disk(self, flavor: str, images_there: bool) -> None:
        """UsageError if too little disk is free for a cluster, or for building its images too."""
        need = DISK_FOR_CLUSTER if images_there else DISK_FOR_IMAGES[flavor]
        if self.free_disk is not None and self.free_disk < need:
            raise UsageError(
                f"{self.free_disk} MiB of disk are free where Docker keeps its data; {need} MiB are needed",
                "make room, for example with: docker builder prune"
                + ("" if images_there or flavor == "slim" else f"; {option('flavor', 'slim')} needs less"),
            )


WRITABLE_CGROUPS = 28
"""The major version of Docker Engine since which containers can be given their cgroup to write.

https://github.com/moby/moby/pull/48828
"""


def no_cgroups(info: EngineInfo) -> str:
    """Why Slurm's cgroup plugin cannot run in the engine's containers; "" if it can."""
    if info.cgroups != "2":
        return f"slurmbed supports only cgroup v2; this engine has version {info.cgroups}"
    if not (info.limits_cpus and info.limits_memory):
        return "the host delegates neither CPUs nor memory to this engine's cgroups"
    if int(info.version.partition(".")[0] or 0) < WRITABLE_CGROUPS:
        return f"Docker Engine {info.version} lets no container write its cgroup; {WRITABLE_CGROUPS} and later do"
    return ""


def cpu_numbers(count: int) -> tuple[int, ...]:
    """The numbers of the engine's CPUs: those of process 1 here if it has as many, else from 0.

    A container of LXC that is this machine may have CPUs 4 to 7. Another machine's are not known.
    """
    here = os.sched_getaffinity(1) if hasattr(os, "sched_getaffinity") else ()
    return tuple(sorted(here)) if len(here) == count else tuple(range(count))


def gpu_names() -> Sequence[str]:
    """Names of the GPUs that nvidia-smi finds, in its order; empty where there is none."""
    return parse_gpus(run(["nvidia-smi", "-L"], timeout=60).stdout) if shutil.which("nvidia-smi") else ()


def free_disk(folder: str) -> int | None:
    """MiB; None where the folder is in Docker Desktop's virtual machine, or closed to this user."""
    try:
        return shutil.disk_usage(folder).free >> 20
    except OSError:
        return None


def check_port(port: int) -> None:
    """UsageError unless the port is free on the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"SSH_PORT={port}: {error.strerror}", "leave SSH_PORT out, and a free port is chosen"
            ) from None


def job_uid(workspace: Path, maps_users: bool = False) -> int:
    """The uid that jobs run as, so that what they write is the user's.

    The first of these that is not root: sudo's caller, this process, the workspace's owner, 1000. If the engine maps
    users, no uid of a container is the user's, and not every uid exists there: it is 1000.
    """
    if maps_users:
        return 1000
    sudo_uid = os.environ.get("SUDO_UID", "")
    candidates = (int(sudo_uid) if sudo_uid.isdecimal() else 0, os.getuid(), workspace.stat().st_uid, 1000)
    return next(uid for uid in candidates if uid)


def caller() -> str:
    """The name of the user who calls slurmbed, behind sudo too."""
    sudo_uid = os.environ.get("SUDO_UID", "")
    uid = int(sudo_uid) if sudo_uid.isdecimal() else os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container that was started with another uid
        return str(uid)


def ca_bundle() -> str:
    """The host's CA bundle, or /dev/null."""
    named = (os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))
    for path in (*named, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"):
        if path and Path(path).is_file():
            return path
    return "/dev/null"
