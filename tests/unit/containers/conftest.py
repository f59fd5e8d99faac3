"""The engine of images is a program of the nodes; here it runs on this machine, with a store in a temporary folder."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

pytest.register_assert_rewrite("made")
from made import PROGRAMS, Registry  # noqa: E402

sys.dont_write_bytecode = True  # images are built from that folder: whatever lies in it changes their digest
sys.path.insert(0, str(PROGRAMS))

from imagestore.command import main  # noqa: E402 # found by the line above


@pytest.fixture
def store(tmp_path):
    """A user's store, empty."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def command(tmp_path, store):
    """The words that run container-image, and the environment for it."""
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CONTAINER_IMAGES": str(store),
        "CONTAINER_REGISTRY": str(tmp_path / "registry"),
    }
    return [sys.executable, "-BIS", "-Xutf8", str(PROGRAMS / "container-image")], env


@pytest.fixture
def run(command, monkeypatch):
    """container-image with these arguments, in this process: (exit status, output, errors)."""
    for name in list(os.environ):
        if name.startswith(("DOCKER_", "ENROOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # what is plain HTTP goes past it
    for name, value in command[1].items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        output, errors = io.StringIO(), io.StringIO()
        mask = os.umask(0o022)
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                status = main(list(map(str, arguments)))
        finally:
            os.umask(mask)
        return status, output.getvalue(), errors.getvalue()

    return run


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.close()


@pytest.fixture(scope="session")
def user_mounts():
    """This machine lets an ordinary user make a namespace, and mount overlays in it; skips the test, if not."""
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b /mnt/c && "
        "mount -t overlay -o userxattr,lowerdir=/mnt/a:/mnt/b none /mnt/c"
    )
    tried = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"this machine mounts nothing for users: {tried.stderr.strip()}")


@pytest.fixture
def overlay(tmp_path):
    """Whether files are of a kind that overlay mounts need; skips the test, if not."""
    probe = tmp_path / "probe"
    probe.mkdir()
    try:
        os.setxattr(probe, "user.overlay.opaque", b"y")
        os.mknod(probe / "removed", 0o020600, 0)
    except OSError as error:
        pytest.skip(f"{tmp_path} takes no marks of overlay: {error.strerror}")
