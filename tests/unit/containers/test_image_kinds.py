"""Images as people have them, started as a step's container. Nothing of a distribution is in them."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from imagestore.enter import HOLDER
from made import PROGRAMS, Image, archive, special

pytestmark = pytest.mark.skipif(
    not (shutil.which("bwrap") and os.path.exists(HOLDER)),
    reason="bubblewrap or the holder of containers is not installed",
)
LINK = b"2"


class Box:
    """A started container. folder: its working directory; root: its files, for this process to look at."""

    def __init__(self, report):
        pid, self.folder, *environment = report.split("\0")
        self.environment = dict(entry.partition("=")[::2] for entry in environment if entry)
        self.root = Path(f"/proc/{pid}/root")


@pytest.fixture
def start(command, tmp_path, user_mounts, overlay):
    """Start the container of an image, with these options of container.c; a Box, or the line that is said instead.
    node: lines of shell that are run before, as root of a namespace."""
    running = []

    def start(image, node="", **asked):
        image.docker_archive(tmp_path / "image.tar")
        given = {"prolog": "", "image": f"docker-archive:{tmp_path}/image.tar", **asked}
        taken, report = os.pipe()
        held, hold = os.pipe()
        begin = f'exec 3>&{report} 4<&{held} {report}>&- {held}<&-; exec "$@"'
        words = [sys.executable, "-BIS", "-Xutf8", PROGRAMS / "container-start"]
        words += [f"{name}={text}" for name, text in given.items()]
        if node:
            words = ["unshare", "-Urm", "sh", "-c", f'{node}\nexec "$@"', "sh", *words]
        process = subprocess.Popen(
            ["bash", "-c", begin, "bash", *words],
            env={**command[1], "SLURM_JOB_ID": "7", "OF": "job"},
            pass_fds=(report, held),
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append((process, hold))
        os.close(report)
        os.close(held)
        with os.fdopen(taken, "rb", buffering=0) as file:
            told = b""
            while not told.endswith(b"\0\0") and (piece := file.read(65536)):
                told += piece
        return Box(told.decode()) if told else process.stderr.read().strip()

    yield start
    for process, hold in running:
        os.close(hold)
        process.communicate(timeout=60)


def test_an_image_with_one_program_and_nothing_else(start):
    """FROM scratch: no /tmp, /proc, /etc or shell."""
    box = start(Image(archive(("program", "x", 0o755)), config={"Entrypoint": ["/program"]}))
    assert box.folder == "/"
    assert (box.root / "program").read_text() == "x"
    assert (box.root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (box.root / "proc/self").exists()
    assert pwd.getpwuid(os.getuid()).pw_name in (box.root / "etc/passwd").read_text()


def test_a_working_directory_that_no_layer_has_is_made(start):
    box = start(Image(archive(("a", "")), config={"WorkingDir": "/srv/app"}))
    assert box.folder == "/srv/app"
    assert "ghost" in start(Image(archive(("a", "")), config={"WorkingDir": "/srv/app"}), workdir="/ghost")


def test_variables_with_equals_signs_and_more_lines(start):
    config = {"Env": ["OPTS=-Da=b -Dc=d", "LINES=one\ntwo", "EMPTY=", "OF=image"]}
    found = start(Image(archive(("a", "")), config=config)).environment
    assert {name: found[name] for name in ("OPTS", "LINES", "EMPTY", "OF")} == {
        "OPTS": "-Da=b -Dc=d",
        "LINES": "one\ntwo",
        "EMPTY": "",
        "OF": "image",
    }


@pytest.mark.parametrize("user", ["1234:5", "nobody", "ghost:ghost"])
def test_the_user_of_an_image_is_whoever_runs_it(start, user):
    box = start(Image(archive(("a", "")), config={"User": user}))
    assert (box.root / "a").stat().st_uid == os.getuid()


@pytest.mark.parametrize("target", ["/var/tmp", "var/tmp", "/ghost"])
def test_a_folder_that_every_container_has_may_be_a_link_in_the_image(start, target):
    image = Image(archive(("var/tmp/", None), special("tmp", LINK, target)))
    box = start(image)
    assert isinstance(box, Box), box
    assert os.readlink(box.root / "tmp") == target


@pytest.mark.parametrize("target", ["/run/systemd/stub", "../run/systemd/stub", "/etc/hosts.real"])
@pytest.mark.parametrize("name", ["hosts", "resolv.conf", "passwd"])
def test_a_file_of_the_node_may_be_a_link_in_the_image(start, name, target):
    box = start(Image(archive(("etc/hosts.real", "its own"), special(f"etc/{name}", LINK, target))))
    assert isinstance(box, Box), box
    assert os.readlink(box.root / "etc" / name) == target


def test_a_mount_below_a_link_of_the_image(start, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    image = Image(archive(("run/", None), ("var/", None), special("var/run", LINK, "/run")))
    box = start(image, mounts=f"{tmp_path}/out:/var/run/x")
    assert isinstance(box, Box), box
    assert (box.root / "run/x/file").read_text() == "mine"


def test_as_many_layers_as_an_image_may_have(start):
    count = 127
    box = start(Image(*(archive(("last", str(i)), (f"d/{i}", ""), (f"d/.wh.{i - 1}", "")) for i in range(count))))
    assert isinstance(box, Box), box
    assert (box.root / "last").read_text() == str(count - 1)
    assert os.listdir(box.root / "d") == [str(count - 1)]


def test_the_drivers_files_of_the_node_are_in_a_folder_of_their_own(start, tmp_path):
    """As NVIDIA's container runtime mounts them into a node, one by one."""
    files = {name: tmp_path / name for name in ("lib/libcuda.so.1.0", "lib/libnvidia-ml.so.1.0", "bin/nvidia-smi")}
    for name, path in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "lib/libcuda.so.1").symlink_to("libcuda.so.1.0")
    node = "".join(f"mount --bind {path} {path}\n" for path in files.values())
    config = {"Env": ["PATH=/bin", "LD_LIBRARY_PATH=/opt/lib"]}
    box = start(Image(archive(("usr/local/lib/", None)), config=config), node=node)
    assert isinstance(box, Box), box
    folder = box.root / "usr/local/nvidia"
    assert sorted(os.listdir(folder / "lib64")) == ["libcuda.so.1", "libcuda.so.1.0", "libnvidia-ml.so.1.0"]
    assert (folder / "lib64/libcuda.so.1").read_text() == "lib/libcuda.so.1.0"
    assert (folder / "bin/nvidia-smi").read_text() == "bin/nvidia-smi"
    assert box.environment["PATH"] == "/bin:/usr/local/nvidia/bin"
    assert box.environment["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64:/opt/lib"
    plain = start(Image(archive(("usr/local/lib/", None)), config=config))
    assert plain.environment["LD_LIBRARY_PATH"] == "/opt/lib"
    assert os.listdir(plain.root / "usr/local") == ["lib"]
