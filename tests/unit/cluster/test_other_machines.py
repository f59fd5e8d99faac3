"""Engines unlike the usual one: what `docker info` says of them, and what becomes of a cluster there.

plain.json and userns-remap.json are recorded. The others are plain.json with what Docker documents for them.
"""

import json
import subprocess
from pathlib import Path

import pytest

from slurmbed.cli import doctor
from slurmbed.cluster import host
from slurmbed.cluster.host import Host
from slurmbed.cluster.plan import Plan, make_plan
from slurmbed.cluster.settings import Settings
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import UsageError
from slurmbed.project import ROOT

RECORDED = ROOT / "tests" / "recorded" / "docker-info"
UNLIKE_PLAIN = {
    "rootless": {
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
        "CPUSet": False,
    },
    "selinux": {"SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]},
    "delegating": {"CgroupVersion": "2", "CgroupDriver": "systemd", "ServerVersion": "28.5.2"},
    "older": {"CgroupVersion": "2", "CgroupDriver": "systemd", "ServerVersion": "27.5.1"},
    "keeping": {"CgroupVersion": "2", "CpuCfsQuota": False, "MemoryLimit": False, "ServerVersion": "28.5.2"},
    "desktop": {"OperatingSystem": "Docker Desktop", "Architecture": "aarch64", "DockerRootDir": "/not/here"},
    "proxied": {"HttpProxy": "http://proxy:3128"},
}


def info(kind: str) -> EngineInfo:
    recorded = RECORDED / f"{kind}.json"
    if recorded.exists():
        return EngineInfo.read(json.loads(recorded.read_text()))
    return EngineInfo.read(json.loads((RECORDED / "plain.json").read_text()) | UNLIKE_PLAIN[kind])


def plan(kind: str, **settings: object) -> Plan:
    found = info(kind)
    return make_plan(Settings(name="c", **settings), None, Snapshot("c", found, (), (), {}), Host.of(found))


def test_the_usual_engine_needs_nothing_of_all_this():
    made = plan("plain")
    assert made.environment["SLURMBED_KEEP_OWNER"] == ""
    mounts = [mount for service in made.overlay["services"].values() for mount in service.get("volumes", ())]
    assert not any("selinux" in mount["bind"] for mount in mounts)
    assert list(doctor.notes(info("plain"), {"PATH": "/bin"}, Path("/"))) == []


def test_nodes_have_cpus_of_their_own_where_the_engine_can_assign_them(monkeypatch):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {4, 7}, raising=False)
    assert [part.own_cpus for part in plan("plain").slices] == [(4,), (7,)]
    assert [part.own_cpus for part in plan("plain", cpus=2).slices] == [(), ()], "four CPUs are not there"
    assert [part.own_cpus for part in plan("rootless").slices] == [(), ()]
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert [part.own_cpus for part in plan("plain").slices] == [(0,), (1,)], "the engine's machine is not this one"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("plain", "only cgroup v2; this engine has version 1"),
        ("older", "Docker Engine 27.5.1 lets no container write its cgroup; 28 and later do"),
        ("keeping", "the host delegates neither CPUs nor memory"),
    ],
)
def test_slurms_cgroups_are_refused_with_the_reason(kind, reason):
    with pytest.raises(UsageError, match=f"CGROUPS=1: .*{reason}"):
        plan(kind, cgroups=True)
    assert not plan(kind).choices.cgroups


def test_slurm_makes_cgroups_where_the_engine_lets_it():
    services = plan("delegating", cgroups=True).overlay["services"]
    node = services["node-1"]
    assert (node["cgroup"], node["security_opt"]) == ("private", ["writable-cgroups=true"])
    assert "CGROUPS=1" in node["command"]
    (lines,) = (word for word in services["slurmctld"]["command"] if word.startswith("SLURM_CONF_LINES="))
    assert "TaskPlugin=task/cgroup,task/affinity" in lines
    assert "ProctrackType=proctrack/cgroup" in lines
    assert not any("security_opt" in services[name] for name in ("db", "slurmdbd", "slurmctld", "login"))


def test_a_node_empties_its_cgroup_before_it_hands_controllers_on(tmp_path):
    """As the kernel asks; here on a folder, in which a second process takes the first one's place."""
    (tmp_path / "cgroup.procs").write_text("1\n17\n")
    script = f"""
        eval "$(sed -n '/^prepare_cgroups()/,/^}}/p' {ROOT}/scripts/entrypoint | sed 's|/etc/slurm/|{tmp_path}/|')"
        prepare_cgroups {tmp_path}
    """
    subprocess.run(["bash", "-euc", script], check=True)
    assert (tmp_path / "init.scope/cgroup.procs").read_text() == "17\n"
    for name in (".", "system.slice"):
        assert (tmp_path / name / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids\n"
    assert "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" in (tmp_path / "cgroup.conf").read_text()


@pytest.mark.parametrize("kind", ["rootless", "userns-remap"])
def test_where_the_engine_maps_users_the_users_folder_keeps_its_owner(kind, monkeypatch, tmp_path):
    """And jobs get a uid that is there: of 65536, whatever the user's own is."""
    monkeypatch.setattr(host.os, "getuid", lambda: 1234567)
    for name in ("data", "runs"):
        (tmp_path / name).mkdir(mode=0o755)
    made = plan(kind, workspace=tmp_path)
    assert made.environment["SLURMBED_KEEP_OWNER"] == "1"
    assert made.choices.job_uid == 1000
    notice = Host.of(info(kind)).notice(tmp_path)
    assert notice.endswith(f"let them write: chmod a+rwx {tmp_path}/data {tmp_path}/runs")
    told = list(doctor.notes(info(kind), {}, tmp_path))
    assert told[0].startswith(kind)
    assert told[1] == notice
    for name in ("data", "runs"):
        (tmp_path / name).chmod(0o777)
    assert Host.of(info(kind)).notice(tmp_path) == ""


@pytest.mark.parametrize(("keep", "given"), [("", ["clone", "clone/data", "clone/runs"]), ("1", [])])
def test_the_entrypoint_gives_the_first_user_what_root_owns_unless_root_is_the_user(tmp_path, keep, given):
    for name in ("clone", "clone/data", "clone/runs"):
        (tmp_path / name).mkdir()
    function = f"{ROOT}/scripts/entrypoint"
    script = f"""
        eval "$(sed -n '/^share_workspace()/,/^}}/p' {function})"
        chown() {{ echo "${{@:3}}"; }}
        share_workspace clone
    """
    env = {"KEEP_OWNER": keep, "USERS": "alice:1000 bob:1001", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == given


USERS = {"ann": 1000, "carol": 1234}
FILES = {"passwd": "root:x:0:0\nalice:x:1000:1000\nsshd:x:101:1\n", "group": "root:x:0:\nalice:x:1000:\n", "shadow": ""}


def test_the_entrypoint_makes_the_clusters_users_instead_of_the_images(tmp_path):
    (tmp_path / "etc").mkdir()
    for name, text in FILES.items():
        (tmp_path / "etc" / name).write_text(text)
    functions = (
        f"sed -n '/^die()/p; /^say()/p; /^number_users()/,/^}}/p' {ROOT}/scripts/entrypoint | sed 's|/etc/|etc/|g'"
    )

    def start(users: str) -> subprocess.CompletedProcess:
        script = f'eval "$({functions})"; number_users'
        env = {"USERS": users, "PATH": "/usr/bin:/bin"}
        return subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env, capture_output=True, text=True)

    for _ in range(2):  # a restarted container has them already
        assert start("ann:1000 carol:1234").returncode == 0
        lines = (tmp_path / "etc" / "passwd").read_text().splitlines()
        assert lines[:2] == ["root:x:0:0", "sshd:x:101:1"]
        assert lines[2:] == [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid in USERS.items()]
        assert (tmp_path / "etc" / "group").read_text() == "root:x:0:\nann:x:1000:\ncarol:x:1234:\n"
        assert [line.split(":")[:2] for line in (tmp_path / "etc" / "shadow").read_text().split()] == [
            ["ann", "*"],
            ["carol", "*"],
        ]
    refused = start("ann:101")
    assert refused.returncode == 1
    assert "UID 101 is not unique: it is that of sshd" in refused.stderr


def test_selinux_has_the_hosts_folders_labelled():
    services = plan("selinux").overlay["services"]
    workspace, the_same_under_its_own_path = services["login"]["volumes"]
    assert workspace["target"] == "/workspace"
    assert workspace["bind"]["selinux"] == the_same_under_its_own_path["bind"]["selinux"] == "z"
    assert services["node-1"]["volumes"] == services["login"]["volumes"]
    assert not any("volumes" in services[name] for name in ("db", "slurmdbd", "slurmctld"))
    assert "SELinux" in "".join(doctor.notes(info("selinux"), {}, Path("/")))


def test_docker_desktop_on_an_arm_processor():
    told = "\n".join(doctor.notes(info("desktop"), {}, Path("/")))
    assert "those of its virtual machine" in told
    assert "aarch64: images are built for it" in told
    assert Host.of(info("desktop")).free_disk is None


def test_the_doctor_names_variables_that_are_ignored_and_proxies():
    environment = {"COMPOSE_FILE": "x", "COMPOSE_PROFILES": "y", "https_proxy": "http://user:secret@proxy:3128"}
    told = "\n".join(doctor.notes(info("plain"), environment, Path("/")))
    assert "ignores COMPOSE_FILE, COMPOSE_PROFILES" in told
    assert "builds and the base image use https_proxy" in told
    assert "the engine pulls without a proxy" in told
    assert "secret" not in told
    assert "the engine pulls without" not in "".join(doctor.notes(info("proxied"), environment, Path("/")))
