"""What this machine has, and one-line refusals that say what to do."""

import socket

import pytest

from slurmbed.cli import doctor
from slurmbed.cluster import host
from slurmbed.cluster.host import DISK_FOR_IMAGES, Host
from slurmbed.cluster.settings import FLAVORS
from slurmbed.errors import UsageError
from slurmbed.process import Result

TWO_GPUS = "GPU 0: NVIDIA H200 (UUID: GPU-11)\nGPU 1: NVIDIA H200 (UUID: GPU-22)\n"


@pytest.fixture
def machine(monkeypatch):
    """Make this a machine with these programs and this output of ``nvidia-smi -L``."""

    def machine(programs: set[str], listing: str = "") -> None:
        monkeypatch.setattr(host.shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(host, "run", lambda argv, **_: Result(tuple(argv), 0, listing, ""))

    return machine


@pytest.mark.parametrize(
    ("programs", "runtime"), [({"nvidia-smi"}, True), ({"nvidia-smi", "nvidia-container-runtime-hook"}, False)]
)
def test_the_hosts_gpus(machine, programs, runtime):
    machine(programs, TWO_GPUS)
    assert list(Host(cpus=2, memory=4096, has_nvidia_runtime=runtime).gpus()) == ["NVIDIA H200", "NVIDIA H200"]


def test_without_the_container_toolkit_the_hosts_gpus_cannot_be_given(machine):
    machine({"nvidia-smi"}, TWO_GPUS)
    with pytest.raises(UsageError, match=r"machine's GPUs \(2\)(.|\n)*install nvidia-container-toolkit"):
        Host(cpus=2, memory=4096).gpus()


@pytest.mark.parametrize(("programs", "listing"), [(set(), ""), ({"nvidia-smi"}, "No devices found.\n")])
def test_a_machine_without_gpus(machine, programs, listing):
    machine(programs, listing)
    with pytest.raises(UsageError, match=r"no NVIDIA GPU(.|\n)*GPUS=2 gives each node two emulated ones"):
        Host(cpus=2, memory=4096, has_nvidia_runtime=True).gpus()


def test_the_doctor_names_the_gpus_and_does_without(machine):
    machine({"nvidia-smi"}, TWO_GPUS)
    assert doctor.describe_gpus(Host(2, 4096, has_nvidia_runtime=True)) == "GPUs for nodes: NVIDIA H200, NVIDIA H200"
    machine(set())
    assert doctor.describe_gpus(Host(2, 4096)) == "GPUs for nodes: no NVIDIA GPU on this machine"


def test_too_little_disk():
    full = Host(cpus=2, memory=4096, free_disk=600)
    full.check_disk("full", images_there=True)
    Host(cpus=2, memory=4096, free_disk=None).check_disk("full", images_there=False)
    with pytest.raises(UsageError, match=r"600 MiB of disk are free(.|\n)*1024 MiB are needed\n.*builder prune$"):
        full.check_disk("slim", images_there=False)


def test_a_larger_flavor_takes_more_disk_and_the_smaller_one_is_named():
    host = Host(cpus=2, memory=4096, free_disk=2048)
    host.check_disk("slim", images_there=False)
    for flavor in ("torch", "full"):
        with pytest.raises(UsageError, match=f"2048 MiB .*; {DISK_FOR_IMAGES[flavor]} MiB are needed") as error:
            host.check_disk(flavor, images_there=False)
        assert "FLAVOR=slim needs less" in error.value.hint
    assert set(DISK_FOR_IMAGES) == set(FLAVORS)


def test_a_taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"SSH_PORT={port}: Address already in use"):
            host.check_port(port)


@pytest.mark.parametrize(
    ("sudo", "own", "owner", "uid"),
    [(0, 501, 0, 501), (1001, 0, 0, 1001), ("", 0, 1234, 1234), ("me", 0, 1234, 1234), (0, 0, 0, 1000)],
)
def test_jobs_run_as_the_user_and_never_as_root(monkeypatch, sudo, own, owner, uid):
    class Workspace:
        def stat(self):
            return type("Stat", (), {"st_uid": owner})

    monkeypatch.setenv("SUDO_UID", str(sudo))
    monkeypatch.setattr(host.os, "getuid", lambda: own)
    assert host.job_uid(Workspace()) == uid
