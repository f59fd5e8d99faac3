"""enroot, as launch scripts call it. Containers are started where this machine has bubblewrap."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from imagestore import reference
from imagestore.enroot import file_name
from imagestore.enroot_start import mount
from imagestore.enter import HOLDER
from imagestore.errors import Refused
from imagestore.inside import inside, make_point
from made import HERE, PROGRAMS, Image, archive, special, squashfs

LINK = b"2"
bubblewrap = pytest.mark.skipif(
    not (shutil.which("bwrap") and os.path.exists(HOLDER)),
    reason="bubblewrap or the holder of containers is not installed",
)


@pytest.fixture
def enroot(command, tmp_path):
    """enroot with these arguments: (exit status, output, errors)."""
    env = {**command[1], "ENROOT_DATA_PATH": str(tmp_path / "data"), "TERM": "dumb"}

    def enroot(*arguments, **more):
        done = subprocess.run(
            [sys.executable, "-BIS", "-Xutf8", PROGRAMS / "enroot", *map(str, arguments)],
            env={**env, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            input="",
        )
        return done.returncode, done.stdout, done.stderr

    return enroot


def test_paths_are_followed_as_the_container_follows_them(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    for name, target in [("abs", "/a"), ("out", "../../../a/b"), ("a/up", ".."), ("etc", "/a"), ("loop", "loop")]:
        (tmp_path / name).symlink_to(target)
    root = str(tmp_path)
    assert inside(root, "/abs/b/new/x") == "/a/b/new/x"
    assert inside(root, "/out") == "/a/b"
    assert inside(root, "/a/up/abs/b/../../..") == "/"
    with pytest.raises(Refused, match="links"):
        inside(root, "/loop/x")
    assert make_point(root, "/etc/slurmbed-test/x", folder=False) == "/a/slurmbed-test/x"
    assert (tmp_path / "a/slurmbed-test/x").is_file()
    assert not os.path.lexists("/etc/slurmbed-test")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/usr:/mnt", ("/usr", "/mnt", "bind")),
        ("/usr:/mnt:ro", ("/usr", "/mnt", "ro-bind")),
        ("/usr", ("/usr", "/usr", "bind")),
        ("/usr /mnt none x-create=dir,bind,ro", ("/usr", "/mnt", "ro-bind")),
        ("tmpfs:/scratch", ("tmpfs", "/scratch", "tmpfs")),
        ("/usr:mnt", ("/usr", "/mnt", "bind")),
        ("/dev/null:/null", ("/dev/null", "/null", "dev-bind")),
        ("/dev/null:/null:ro", ("/dev/null", "/null", "dev-bind")),
        ("/dev:/dev", ("/dev", "/dev", "dev-bind")),
        ("/dev/shm:/shm:ro", ("/dev/shm", "/shm", "ro-bind")),
    ],
)
def test_mounts(text, expected):
    assert mount(text) == expected


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("docker://ubuntu", "ubuntu.sqsh"),
        ("docker://ubuntu:latest", "ubuntu+latest.sqsh"),
        ("docker://library/ubuntu", "library+ubuntu.sqsh"),
        ("docker://ann@nvcr.io#nvidia/cuda", "nvidia+cuda.sqsh"),
        ("docker://localhost:5000/a/debian:1", "a+debian+1.sqsh"),
        ("docker://docker.io/ubuntu@sha256:" + "0" * 64, "ubuntu.sqsh"),
        ("docker://nvcr.io#nvidia/cuda:12.4-base", "nvidia+cuda+12.4-base.sqsh"),
        ("docker-archive:/tmp/model.tar", "model.sqsh"),
    ],
)
def test_the_file_of_an_import_has_enroots_name(uri, name):
    assert file_name(uri, reference.parse(uri)) == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["start", "none", "true"], "[ERROR] No such file or directory: {data}/none\n"),
        (["remove", "-f", "none"], "[ERROR] No such file or directory: {data}/none\n"),
        (["export", "none"], "[ERROR] No such file or directory: {data}/none\n"),
        (["create", "none.sqsh"], "[ERROR] No such file or directory: none.sqsh\n"),
        (["remove", "-f", "../x"], "[ERROR] Invalid argument: ../x\n"),
        (["import", "-o", "there.sqsh", "docker://a"], "[ERROR] File already exists: {here}/there.sqsh\n"),
        (["exec", "4194999", "true"], "[ERROR] No such process: 4194999\n"),
        (["bundle", "-o", "a.run", "a.sqsh"], "[ERROR] Command not supported here: bundle\n"),
        (["batch", "a.conf"], "[ERROR] Command not supported here: batch\n"),
        (["load", "docker://a"], "[ERROR] Command not supported here: load\n"),
        (
            ["start", "--conf", "a.conf", "none"],
            "[ERROR] Option not supported here: --conf; use --env, --mount and --rc\n",
        ),
    ],
)
def test_errors_are_enroots(enroot, tmp_path, words, said):
    (tmp_path / "there.sqsh").touch()
    assert enroot(*words) == (1, "", said.format(data=tmp_path / "data", here=tmp_path))


def test_an_import_from_docker_names_the_two_other_ways(enroot):
    status, _, errors = enroot("import", "dockerd://debian")
    assert (status, errors.count("\n")) == (1, 1)
    assert "docker://localhost:PORT#NAME" in errors
    assert "docker save" in errors


def test_the_version_is_a_bare_number(enroot):
    status, output, errors = enroot("version")
    assert (status, errors) == (0, "")
    assert re.fullmatch(r"3\.\d+\.\d+\n", output)


def test_an_image_for_another_processor_is_refused(enroot, tmp_path):
    for option in ("-a", "--arch"):
        status, _, errors = enroot("import", option, "s390x", "docker-archive:no.tar")
        assert (status, errors.count("\n")) == (1, 1)
        assert "s390x" in errors
        assert HERE in errors
    for name in (HERE, os.uname().machine):
        assert "no.tar: No such file" in enroot("import", "-a", name, "docker-archive:no.tar")[2]


def test_list_and_remove(enroot, tmp_path):
    assert enroot("list") == (0, "", "")
    for name in ("b", "a"):
        (tmp_path / "data" / name / "etc").mkdir(parents=True)
    assert enroot("list") == (0, "a\nb\n", "")
    assert enroot("remove", "a") == (0, f"Do you really want to delete {tmp_path}/data/a? [y/N] ", "")
    assert enroot("remove", "-f", "a") == (0, "", "")
    assert enroot("list") == (0, "b\n", "")


@pytest.fixture
def kept(run, store, tmp_path):
    """A container of `srun --container-name=kept`, on this machine: its folder."""
    Image(archive(("below", "image"))).docker_archive(tmp_path / "image.tar")
    folder = store / "containers" / os.uname().nodename / "kept"
    folder.joinpath("upper").mkdir(parents=True)
    folder.joinpath("image").write_text(run("pull", f"docker-archive:{tmp_path}/image.tar")[1].strip())
    folder.joinpath("upper/above").write_text("step")
    return folder


def test_a_container_of_srun_has_the_name_that_pyxis_gives_it(enroot, kept):
    (kept.parent / "failed").mkdir()
    (kept.parent / ".1.0").mkdir()
    assert enroot("list") == (0, "pyxis_kept\n", "")
    assert enroot("remove", "--force", "pyxis_kept") == (0, "", "")
    assert not kept.exists()
    assert enroot("list") == (0, "", "")
    status, _, errors = enroot("remove", "-f", "pyxis_kept")
    assert (status, errors.split(":")[0]) == (1, "[ERROR] No such file or directory")


def test_the_processes_of_a_container_of_srun_are_listed_while_its_file_is_locked(enroot, kept):
    """Afterwards the kernel gives the number of its namespace to another one."""
    of_step = os.stat("/proc/self/ns/mnt").st_ino
    with open(kept / "running", "w") as file:
        file.write(f"/\0A=1\0\0{os.getpid()} 5 6 {of_step}\n")
        file.flush()
        assert enroot("list", "-f")[1].splitlines()[1:] == ["pyxis_kept"]
        fcntl.flock(file, fcntl.LOCK_SH)
        [line] = enroot("list", "-f")[1].splitlines()[1:]
    first = min(int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if is_in(of_step, pid))
    assert line.split()[:2] == ["pyxis_kept", str(first)], "one for all that are in the container"


def is_in(namespace, pid):
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino == namespace
    except OSError:
        return False


@squashfs
def test_a_container_of_srun_is_exported_and_made_again(enroot, kept, tmp_path):
    assert enroot("export", "--output", "out.sqsh", "pyxis_kept")[0] == 0
    assert enroot("create", "--name", "pyxis_other", "out.sqsh")[0] == 0
    assert enroot("list")[1].split() == ["pyxis_kept", "pyxis_other"]
    assert enroot("create", "--name", "pyxis_other", "out.sqsh")[0] == 1
    assert enroot("create", "--force", "--name", "pyxis_other", "out.sqsh")[0] == 0
    layer = (Path((kept.parent / "other/image").read_text()) / "layers").read_text().strip()
    assert {"above", "below"} <= set(os.listdir(layer))
    assert not os.listdir(kept.parent / "other/upper")


def system():
    """This machine's shell and some tools, with their libraries, as a layer."""
    paths = set()
    for name in ("sh", "cat", "chown", "id", "sleep", "touch", "ls"):
        path = os.path.realpath(shutil.which(name))
        said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True, timeout=60).stdout
        paths.update([path, *(word for word in said.split() if word.startswith("/"))])
        paths.add(f"/bin/{name}")
    members = []
    for path in sorted(paths):
        with open(path, "rb") as file:
            members.append((path[1:], file.read(), 0o755))
    return members


@pytest.fixture
def container(enroot, tmp_path):
    """A container that is there, made by import and create."""
    members = (("ship/here", ""), special("home", LINK, "/var/home"), special("etc/resolv.conf", LINK, "/run/ghost"))
    image = Image(archive(*system()), archive(*members), config={"Env": ["OF_IMAGE=1"], "WorkingDir": "/ship"})
    image.docker_archive(tmp_path / "image.tar")
    status, output, errors = enroot("import", f"docker-archive:{tmp_path}/image.tar")
    assert (status, output) == (0, ""), errors
    assert "[INFO] Creating squashfs filesystem...\n" in errors
    assert enroot("create", "--name", "c", "image.sqsh") == (0, "", "[INFO] Extracting squashfs filesystem...\n")
    return "c"


@squashfs
@bubblewrap
def test_a_container_runs(user_mounts, enroot, container, tmp_path):
    status, output, errors = enroot(
        "start", container, "sh", "-c", "id -u; pwd; echo $OF_IMAGE $HIDDEN; exit 42", HIDDEN="x"
    )
    assert (status, output, errors) == (42, f"{os.geteuid()}\n/ship\n1\n", "")
    assert enroot("start", container, "touch", "/ship/x")[0] == 1, "read-only, without --rw"
    assert enroot("start", "--rw", container, "touch", "/ship/x") == (0, "", "")
    assert enroot("start", container, "ls")[1] == "here\nx\n"
    assert enroot("start", "image.sqsh", "ls")[1] == "here\n", "the file is as it was"
    assert enroot("start", "--root", container, "sh", "-c", "id -u; echo $HOME")[1] == "0\n/root\n"
    assert (
        enroot("start", "--env", "A=b", "--env", "HIDDEN", container, "sh", "-c", "echo $A$HIDDEN", HIDDEN="x")[1]
        == "bx\n"
    )
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/file").write_text("shared\n")
    mounted = f"{tmp_path}/shared:/mnt/deep"
    assert enroot("start", "-m", mounted, container, "cat", "/mnt/deep/file")[1] == "shared\n"
    assert enroot("start", "-m", f"{mounted}:ro", container, "touch", "/mnt/deep/x")[0] == 1
    (tmp_path / "owned").touch()
    mine = ("-m", f"{tmp_path}/owned:/mnt/owned")
    assert enroot("start", *mine, container, "chown", "42:42", "/mnt/owned")[0] == 1
    assert enroot("start", "--root", *mine, container, "chown", "42:42", "/mnt/owned") == (0, "", "")
    assert enroot("start", "-m", "/dev/null:/null", container, "sh", "-c", "echo x >/null") == (0, "", "")
    assert enroot("start", "image.sqsh", "sh", "-c", "kill -9 $$")[0] == -9
    assert enroot("create", "-n", "c", "image.sqsh") == (1, "", f"[ERROR] File already exists: {tmp_path}/data/c\n")
    assert enroot("export", "-o", "out.sqsh", container)[0] == 0
    assert enroot("create", "-n", "d", "out.sqsh")[0] == 0
    assert enroot("start", "d", "sh", "-c", "ls; echo $OF_IMAGE") == (0, "here\nx\n1\n", "")


@squashfs
@bubblewrap
@pytest.mark.skipif(not shutil.which("ps"), reason="procps is not installed")
def test_a_command_joins_a_container(user_mounts, enroot, container, command, tmp_path):
    env = {**command[1], "ENROOT_DATA_PATH": str(tmp_path / "data")}
    words = [sys.executable, "-BIS", PROGRAMS / "enroot", "start", container, "sh", "-c", "echo up; exec sleep 100"]
    running = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "up\n"
        deadline = time.monotonic() + 60
        while not (lines := [line for line in enroot("list", "-f")[1].splitlines() if "sleep 100" in line]):
            assert time.monotonic() < deadline
        name, pid, *_ = lines[0].split()
        assert name == container
        assert enroot("exec", pid, "sh", "-c", "ls /ship; echo $OF_IMAGE") == (0, "here\n1\n", "")
    finally:
        running.kill()
        running.communicate(timeout=60)


@squashfs
@bubblewrap
@pytest.mark.skipif(not shutil.which("ps"), reason="procps is not installed")
def test_a_signal_reaches_the_command_and_nothing_is_left(user_mounts, enroot, container, command, tmp_path):
    env = {**command[1], "ENROOT_DATA_PATH": str(tmp_path / "data")}
    script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"
    words = [sys.executable, "-BIS", PROGRAMS / "enroot", "start", container, "sh", "-c", script]
    running = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "up\n"
        running.terminate()
        assert running.wait(60) == 7
        deadline = time.monotonic() + 60
        while [line for line in enroot("list", "-f")[1].splitlines()[1:] if line != container]:
            assert time.monotonic() < deadline
    finally:
        running.kill()
        running.communicate(timeout=60)
