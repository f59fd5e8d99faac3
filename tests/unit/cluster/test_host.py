"""What a user may ask of this machine: honest slices, and one-line refusals that say what to do."""

import socket

import pytest

from slurmbed.cluster import host
from slurmbed.engine.compose import Slice
from slurmbed.errors import UsageError

LAPTOP = host.Host(cpus=8, memory=16384, free_disk=50_000)


def test_slices_share_the_host_out():
    assert host.slice_for(LAPTOP, 2) == Slice(cpus=4, memory=6144, cpu_limit=4, memory_limit=6144)
    assert host.slice_for(LAPTOP, 64) == Slice(cpus=1, memory=192, cpu_limit=1, memory_limit=192)


def test_more_cpus_may_be_offered_than_there_are_but_are_not_given():
    assert host.slice_for(LAPTOP, 2, cpus="32") == Slice(cpus=32, memory=6144, cpu_limit=8, memory_limit=6144)


def test_a_node_offers_the_least_cpus_unless_told_otherwise():
    assert host.slice_for(LAPTOP, 2, least_cpus=16) == Slice(cpus=16, memory=6144, cpu_limit=8, memory_limit=6144)
    assert host.slice_for(LAPTOP, 2, least_cpus=2).cpus == 4
    assert host.slice_for(LAPTOP, 2, cpus="1", least_cpus=16).cpus == 1
    with pytest.raises(UsageError, match=r"512 MiB for a node of 16 CPUs(.|\n)*fewer NODES, CPUS or GPUS"):
        host.slice_for(LAPTOP, 2, memory="512M", least_cpus=16)


def test_a_host_without_limits_gets_slices_without():
    rootless = host.Host(cpus=8, memory=16384, free_disk=None, limits_cpus=False, limits_memory=False)
    assert host.slice_for(rootless, 2) == Slice(cpus=4, memory=6144, cpu_limit=0, memory_limit=0)


def test_new_nodes_share_what_the_old_ones_leave():
    assert host.slice_for(LAPTOP, 8, taken=2 * 6144, kept=2).memory == (16384 - 2 * 6144) // 6
    assert host.slice_for(LAPTOP, 3, taken=2 * 1024, kept=2).memory == 4096
    with pytest.raises(UsageError, match="less than 64 MiB a CPU"):
        host.slice_for(LAPTOP, 8, taken=16300, kept=2)


def test_memory_as_asked():
    assert host.slice_for(LAPTOP, 2, memory="2G").memory == 2048


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"memory": "9G"}, r"2 nodes is 18432 MiB; the host has 16384 MiB"),
        ({"memory": "lots"}, r"MEMORY='lots' is not an amount of memory"),
        ({"memory": "100M"}, r"100 MiB for a node of 4 CPUs"),
        ({"cpus": "0"}, r"CPUS=0: not a whole number"),
        ({"cpus": "many"}, r"CPUS=many: not a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(options, reason):
    with pytest.raises(UsageError, match=reason):
        host.slice_for(LAPTOP, 2, **options)


@pytest.mark.parametrize("text", ["0", "abc", "-1", "1.5", "257", "", "2 "])
def test_a_number_of_nodes_is_a_whole_number_in_bounds(text):
    with pytest.raises(UsageError, match=f"NODES={text}: not a whole number from 1 to 256"):
        host.whole_number("NODES", text, 1, 256)


def test_known_versions_of_slurm_have_a_suite():
    assert host.suite("24.11") == "trixie"
    with pytest.raises(UsageError, match=r"SLURM=23\.02(.|\n)*choose one of 24\.11, 26\.05"):
        host.suite("23.02")


@pytest.mark.parametrize("name", ["Big", "a b", "", "-x", "ü"])
def test_names_that_compose_would_refuse(name):
    with pytest.raises(UsageError, match="not a cluster name"):
        host.check_name(name)


def test_too_little_disk():
    full = host.Host(cpus=2, memory=4096, free_disk=600)
    host.check_disk(full, images_there=True)
    host.check_disk(host.Host(cpus=2, memory=4096, free_disk=None), images_there=False)
    with pytest.raises(UsageError, match=r"600 MiB of disk are free(.|\n)*docker builder prune"):
        host.check_disk(full, images_there=False)


def test_a_taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with pytest.raises(UsageError, match=f"SSH_PORT={port}: Address already in use"):
            host.check_port(port)
    host.check_port("")


@pytest.mark.parametrize(
    ("sudo", "own", "owner", "uid"), [(0, 501, 0, 501), (1001, 0, 0, 1001), (0, 0, 1234, 1234), (0, 0, 0, 1000)]
)
def test_jobs_run_as_the_user_and_never_as_root(monkeypatch, sudo, own, owner, uid):
    class Workspace:
        def stat(self):
            return type("Stat", (), {"st_uid": owner})

    monkeypatch.setenv("SUDO_UID", str(sudo))
    monkeypatch.setattr(host.os, "getuid", lambda: own)
    assert host.job_uid(Workspace()) == uid


def test_the_public_key_for_ssh_is_the_users_first(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert host.ssh_public_key() == ""
    (tmp_path / ".ssh").mkdir()
    for name in ("rsa", "ed25519"):
        (tmp_path / ".ssh" / f"id_{name}.pub").write_text(f"ssh-{name} AAAA me\n")
        (tmp_path / ".ssh" / f"id_{name}").write_text("secret")
    assert host.ssh_public_key() == "ssh-ed25519 AAAA me"
