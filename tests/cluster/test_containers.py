"""Containers and images from the inside: users, key modes, capabilities, no secret in any layer."""

import json
import os
import re
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
import testinfra

from harness import engine, jobs
from harness.internals import wait_ready
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

ALL = (*engine.SERVICES, "node-1", "node-2")
# By their numbers: CHOWN, KILL, SETGID, SETUID; FOWNER; AUDIT_WRITE, DAC_OVERRIDE, SYS_CHROOT; SYS_PTRACE.
OF_DB = {0, 5, 6, 7}
OF_CONTROLLERS = OF_DB | {3}
WITH_USERS = OF_CONTROLLERS | {1, 18, 29}
WITH_JOBS = WITH_USERS | {19}
CAPABILITIES = {"db": OF_DB, "slurmdbd": OF_CONTROLLERS, "slurmctld": OF_CONTROLLERS, "login": WITH_USERS}


@pytest.fixture(params=ALL)
def inside(request, slurm_cluster):
    """testinfra's view of a container, with the name of its service."""
    machine = look_into(slurm_cluster, request.param)
    machine.service_name = request.param
    return machine


def look_into(cluster, service: str):
    return testinfra.get_host(f"docker://{engine.container(cluster, service)}")


def test_capabilities_are_the_few_that_are_named(inside):
    effective = int(inside.check_output("sed -n 's/^CapBnd:\t//p' /proc/1/status"), 16)
    allowed = CAPABILITIES.get(inside.service_name, WITH_JOBS)
    assert {bit for bit in range(64) if effective >> bit & 1} == allowed
    assert inside.check_output("sed -n 's/^NoNewPrivs:\t//p' /proc/1/status") == "1"


def test_keys_are_readable_by_their_owner_alone(inside):
    keys = inside.run("find /keys -type f").stdout.split()
    assert bool(keys) == (inside.service_name != "db")
    for key in keys:
        file = inside.file(key)
        assert file.mode == 0o400, key
        assert file.size >= 32, key


def test_which_keys_each_container_has(inside):
    expected = {
        "db": set(),
        "slurmdbd": {"jwt", "munge"},
        "slurmctld": {"jwt", "munge"},
    }
    keys = set(inside.run("ls /keys").stdout.split())
    assert keys == expected.get(inside.service_name, {"munge", "ssh"})


def test_daemons_run_as_their_users(slurm_cluster):
    daemons = {"db": ("mariadbd", "mysql"), "slurmdbd": ("slurmdbd", "slurm"), "slurmctld": ("slurmctld", "slurm")}
    for service, (program, user) in daemons.items():
        shown = engine.execute(slurm_cluster, service, ["ps", "-eo", "user:32=,args="]).check().stdout
        lines = [line.split() for line in shown.splitlines()]
        assert {owner for owner, command, *_ in lines if Path(command).name == program} == {user}


def test_the_users_are_the_same_everywhere(slurm_cluster):
    found = set()
    for service in ("slurmdbd", "slurmctld", "login", "node-1", "node-2"):
        machine = look_into(slurm_cluster, service)
        found.add((machine.user("alice").uid, machine.user("bob").uid, machine.user("slurm").uid))
    ((alice, bob, _),) = found
    assert alice == slurm_cluster.workspace().stat().st_uid
    assert 0 not in (alice, bob)
    assert alice != bob


def test_one_munge_key_and_a_credential_that_crosses_containers(slurm_cluster):
    credential = engine.execute(slurm_cluster, "login", ["munge", "-n"]).check().stdout
    node = look_into(slurm_cluster, "node-2")
    assert "Success" in node.check_output("echo '%s' | unmunge", credential.strip())


def test_slurmdbd_conf_is_slurms_alone(slurm_cluster):
    machine = look_into(slurm_cluster, "slurmdbd")
    file = machine.file("/etc/slurm/slurmdbd.conf")
    assert (file.user, file.mode) == ("slurm", 0o600)
    conf = engine.execute(slurm_cluster, "slurmdbd", ["cat", file.path], user="slurm").check().stdout
    assert "\nStoragePass" not in conf, "the database knows slurmdbd by its socket, without a secret"


OF_IMAGES = {"PATH", "LANG"}
# In a job besides what Slurm adds for MPI's launchers.
OF_JOBS = re.compile(r"(SLURM|SLURMD|SRUN|HYDRA|I_MPI|OMPI|PRTE)_|HOME$|HOSTNAME$|BASH_ENV$|PWD$|SHLVL$|TMPDIR$|_$")


@pytest.mark.newest
def test_nothing_that_a_container_is_told_reaches_its_users(slurm_cluster, slurm):
    for service in ALL:
        made = {each.partition("=")[0] for each in engine.inspect(slurm_cluster, service)["Config"]["Env"]}
        assert {name for name in made if not name.lower().endswith("_proxy")} == OF_IMAGES, service
    printed = slurm.runner(["srun", "env"]).check().stdout
    found = {line.partition("=")[0] for line in printed.splitlines()}
    assert not {name for name in found - OF_IMAGES if not OF_JOBS.match(name)}


def test_lists_of_packages_that_have_expired_are_refused(inside):
    assert "false" not in inside.check_output("apt-config dump Acquire::Check-Valid-Until")


def test_nodes_are_held_to_their_slice(slurm_cluster):
    made = engine.inspect(slurm_cluster, "node-1")["HostConfig"]
    cpus = min(2, os.cpu_count())  # a node may offer more than there are, but is not given more
    assert (made["NanoCpus"], made["Memory"], made["ShmSize"]) == (cpus * 10**9, 2304 << 20, 512 << 20)
    assert (made["MemorySwap"], made["PidsLimit"]) == (made["Memory"], 8192)
    assert made["Privileged"] is False


def test_sshd_answers_on_the_hosts_port(slurm_cluster):
    port = engine.port(slurm_cluster, "login", 22)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        assert connection.recv(100).startswith(b"SSH-2.0-OpenSSH")


def ssh(cluster, user: str, target: str, *options: str, start: str = "login", say: str = "hostname"):
    """BatchMode: whoever is not known, host or user, is refused without a question."""
    return engine.execute(cluster, start, ["ssh", "-oBatchMode=yes", *options, target, say], user=user)


def test_a_users_own_key_leads_to_login_and_to_nobody_else(slurm_cluster):
    jobs.wait_until_idle(slurm_cluster)  # the end of a user's last job on a node ends all else of the user's there
    for user in ("alice", "bob"):
        taken = ssh(slurm_cluster, user, "login", "-tt", start="node-1", say="id -un; tty")
        assert taken.check().stdout.startswith(f"{user}\n/dev/pts/")
        file = engine.execute(slurm_cluster, "login", ["stat", "--format=%U %a", f"/home/{user}/.ssh/id_ed25519"])
        assert file.check().stdout == f"{user} 600\n"
    assert "Permission denied (publickey" in ssh(slurm_cluster, "alice", "bob@login").stderr


def test_ssh_to_a_node_takes_a_job_there(slurm_cluster, slurm_submit):
    jobs.wait_until_idle(slurm_cluster)
    refused = "Access denied: alice has no job on node-2\n"
    assert refused in ssh(slurm_cluster, "alice", "node-2").stderr
    job = slurm_submit("--nodelist=node-2", "--wrap", "sleep 600")
    job.wait_for_state("RUNNING")
    assert ssh(slurm_cluster, "alice", "node-2").check().stdout == "node-2\n"
    assert ssh(slurm_cluster, "alice", "node-2", "-tt", say="tty").check().stdout.startswith("/dev/pts/")
    assert "bob has no job on node-2" in ssh(slurm_cluster, "bob", "node-2").stderr
    assert "alice has no job on node-1" in ssh(slurm_cluster, "alice", "node-1").stderr
    for words in (["login"], ["node-2", "-f", "/etc/ssh/sshd_config_node"]):
        settings = engine.execute(slurm_cluster, words[0], ["/usr/sbin/sshd", "-T", *words[1:]]).check().stdout
        assert "x11forwarding no\n" in settings.lower()  # OpenSSH of sid writes it as its manual does
    # A tunnel begins on login, never on a node.
    assert ssh(slurm_cluster, "alice", "node-2", "-Jlogin", start="node-1").check().stdout == "node-2\n"
    assert "administratively prohibited" in ssh(slurm_cluster, "alice", "login", "-Jnode-2").stderr
    job.cancel()

    def gone() -> None:
        if refused not in ssh(slurm_cluster, "alice", "node-2").stderr:
            raise Pending("the job's last process has not ended")

    wait_until(gone, what="alice is refused again", timeout=60)


def test_homes_are_their_users_alone_and_hold_nothing_of_the_clusters(slurm_cluster):
    login = look_into(slurm_cluster, "login")
    found = login.check_output(r"find /home -mindepth 1 -maxdepth 1 -printf '%p %u %g %m\n'")
    assert sorted(found.splitlines()) == ["/home/alice alice alice 700", "/home/bob bob bob 700"]


# Takes the lock of every file and folder that it can open, says how many, and keeps them.
LOCK_ALL = """
import fcntl, os, time
kept = []
for top in ("/home", "/keys", "/workspace", "/tmp", "/etc/slurm", "/var/lib/slurm"):
    for folder, _, names in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept.append(descriptor)
            except OSError:
                pass
print(len(kept), flush=True)
time.sleep(600)
"""


def test_no_user_keeps_a_node_from_starting(slurm_cluster, slurm, slurm_faults):
    """By holding what its start might wait for: a restarted node-2 joins while alice holds every lock she can get."""
    argv = engine.exec_argv(slurm_cluster, "node-1", ["timeout", "300", "python3", "-c", LOCK_ALL], "alice")
    before = engine.started_at(slurm_cluster, "node-2")
    locks = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert int(locks.stdout.readline()) > 20
        engine.execute(slurm_cluster, "node-2", ["mkdir", "/localscratch/of-a-lost-job"]).check()
        slurm_faults.restart("node-2")
        wait_ready(slurm_cluster, 2)
        assert engine.started_at(slurm_cluster, "node-2") > before
        assert not engine.execute(slurm_cluster, "node-2", ["ls", "/localscratch/of-a-lost-job"]).ok
        assert slurm.runner(["srun", "--nodelist=node-2", "hostname"]).check().stdout == "node-2\n"
    finally:
        engine.execute(slurm_cluster, "node-1", ["pkill", "-u", "alice", "python3"])
        locks.wait(30)
        locks.stdout.close()


@pytest.mark.parametrize(
    "trap", ["rm -rf ~/.ssh; touch ~/.ssh", "rm ~/.ssh/authorized_keys; mkfifo ~/.ssh/authorized_keys"]
)
def test_no_user_keeps_login_from_starting(slurm_cluster, slurm_faults, trap):
    """By what a home holds where a key or a list of keys is looked for; a pipe would be waited for."""
    trapped = f"cp -a ~/.ssh ~/.kept; {trap}"
    slurm_cluster.as_user("bob")(["env", "HOME=/home/bob", "bash", "-c", trapped]).check()
    try:
        slurm_faults.restart("login")
        wait_until(lambda: answers(slurm_cluster), what="sshd on login answers", timeout=60)
        said = run(["docker", "logs", engine.container(slurm_cluster, "login")], timeout=30).output
        assert "bob has no ssh key: check /home/bob/.ssh" in said
    finally:
        restore = "rm -rf ~/.ssh; mv ~/.kept ~/.ssh"
        slurm_cluster.as_user("bob")(["env", "HOME=/home/bob", "bash", "-c", restore]).check()


def answers(cluster) -> None:
    try:
        with socket.create_connection(("127.0.0.1", engine.port(cluster, "login", 22)), timeout=10) as connection:
            if not connection.recv(100).startswith(b"SSH-2.0"):
                raise Pending("no greeting")
    except (OSError, IndexError) as error:
        raise Pending(str(error)) from None


SECRET_NAMES = ("munge.key", "jwt_hs256.key", "slurm.key", "ssh_host_", "id_rsa", "id_ed25519")


def test_the_node_image_stays_small(image):
    """With all launchers; the sizes of its files, as engines count layers in different ways."""
    argv = [
        "docker",
        "run",
        "--rm",
        "--network=none",
        "--entrypoint=du",
        image,
        "--summarize",
        "--one-file-system",
        "--bytes",
        "/",
    ]
    size = int(run(argv, timeout=300).check().stdout.split()[0])
    assert 1e9 < size < (2.4e9 if ":24.11-" in image else 2.7e9)  # torch 2.14 is larger than 2.6


def test_no_layer_of_an_image_holds_a_secret(image):
    """All layers, not the final view: a file that a later layer removes can still be read."""
    names = [f"slurmbed-{kind}:{image.rpartition(':')[2]}" for kind in ("db", "control", "node")]
    if folders := folders_of_layers(names):
        assert_no_secret_in_folders(folders, image)
    else:
        assert_no_secret_in_archive(names)


def folders_of_layers(names: list[str]) -> list[str]:
    """Where the engine keeps each layer; empty if it does not say so, as with containerd's images.

    To save the images takes half a minute of CPU time, most of which goes into the contents of files.
    """
    found = set()
    for name in names:
        made = json.loads(engine.docker("image", "inspect", name))[0]
        data = (made.get("GraphDriver") or {}).get("Data") or {}
        folders = [*data.get("LowerDir", "").split(":"), data.get("UpperDir", "")]
        if len(list(filter(None, folders))) != len(made["RootFS"]["Layers"]):
            return []
        found |= set(folders)
    return sorted(found)


def assert_no_secret_in_folders(folders: list[str], image: str) -> None:
    mounts = [f"--volume={folder}:/layers/{number}:ro" for number, folder in enumerate(folders)]
    look = "find . -mindepth 2 -printf '%P\\n'; ! grep -r --include=slurmdbd.conf ^StoragePass= . >&2"
    options = ("--rm", "--network=none", "--user=0", "--workdir=/layers", "--entrypoint=sh")
    done = run(["docker", "run", *options, *mounts, image, "-c", look], timeout=300).check()
    files = {line.partition("/")[2] for line in done.stdout.splitlines()}
    assert {"usr/sbin/mariadbd", "usr/sbin/slurmctld", "usr/sbin/slurmd", "etc/slurm/slurm.conf"} <= files
    assert [file for file in files if is_secret(file)] == []


def is_secret(file: str) -> bool:
    return any(name in file for name in SECRET_NAMES) or file.startswith("keys/")


def assert_no_secret_in_archive(names: list[str]) -> None:
    read: set[str] = set()
    links: dict[str, str] = {}
    with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as saving:
        archive = tarfile.open(fileobj=saving.stdout, mode="r|")  # noqa: SIM115, closed with its process
        for member in archive:
            if member.name == "manifest.json":
                described = json.load(archive.extractfile(member))
            elif member.issym():  # the same layer once more
                links[member.name] = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
            elif member.isfile() and has_no_secret(archive.extractfile(member)):
                read.add(member.name)
    read |= {name for name, target in links.items() if target in read}
    assert saving.returncode == 0
    assert sorted(name for each in described for name in each["RepoTags"]) == sorted(names)
    for each in described:
        assert set(each["Layers"]) <= read, f"a layer of {each['RepoTags']} was not read"


def has_no_secret(file) -> bool:
    """Whether it is a layer, in which no file is, or holds, a secret; an assertion fails if one does."""
    try:
        layer = tarfile.open(fileobj=file, mode="r|*")  # noqa: SIM115, closed with the archive
    except tarfile.ReadError:
        return False  # a JSON file of an image
    for each in layer:
        assert not is_secret(each.name), each.name
        if each.name == "etc/slurm/slurmdbd.conf":
            assert b"\nStoragePass=" not in layer.extractfile(each).read()
    return True


def test_without_the_switch_jobs_have_no_containers(slurm_cluster):
    """One line names the switch, and the kernel's doors that it opens are shut."""
    for words in (["srun", "true"], ["sbatch", "--wrap=true"], ["salloc", "true"]):
        ran = slurm_cluster.slurm.runner([words[0], "--container-image=debian", words[1]])
        assert ran.returncode == 1
        assert len(ran.stderr.splitlines()) == 1
        assert "CONTAINERS=1" in ran.stderr
    for service in ("login", "node-1"):
        for flag in ("--user", "--mount"):
            tried = engine.execute(slurm_cluster, service, ["unshare", flag, "true"], user="alice")
            assert "Operation not permitted" in tried.stderr
        assert not engine.execute(slurm_cluster, service, ["ls", "/var/lib/container-images"]).ok
