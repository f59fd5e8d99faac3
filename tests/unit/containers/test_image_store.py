"""Pulls that are killed, that come at once, and that find the disk full."""

import os
import signal
import subprocess
import threading

import pytest
from made import Image, Registry, archive, empty, layers, refused, squashfs, wait_for

BIG = 3_000_000


@pytest.fixture
def image():
    return Image(archive(("a", "1")), archive(("b", os.urandom(BIG))))


class Slow:
    """Answers half of a blob, and the rest when it is told to go on."""

    def __init__(self):
        self.started, self.go_on = threading.Event(), threading.Event()

    def __call__(self, handler, content):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        self.started.set()
        self.go_on.wait(100)
        try:
            handler.wfile.write(content[len(content) // 2 :])
        except OSError:
            handler.close_connection = True


@pytest.fixture
def slow(registry, image):
    """The image is a:1, and its second layer comes slowly."""
    registry.push("a", "1", image)
    slow = registry.changed[f"/v2/a/blobs/{image.packed[1]}"] = Slow()
    yield slow
    slow.go_on.set()


def start(command, *arguments):
    words, env = command
    return subprocess.Popen([*words, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_pull_that_is_killed_leaves_nothing_that_is_taken_for_an_image(command, run, registry, store, slow, image):
    name = f"127.0.0.1:{registry.port}/a:1"
    pull = start(command, "pull", name)
    assert slow.started.wait(60)
    pull.kill()
    pull.communicate(timeout=60)
    assert not [*store.glob("images/*"), *store.glob("manifests/*")]
    assert len([*store.glob("layers/*")]) == 1, "the first layer was whole"
    slow.go_on.set()
    registry.changed.clear()
    registry.asked.clear()
    found = layers(run("pull", name))
    assert len(found) == 2
    assert not [path for _, path in registry.asked if path.endswith(image.packed[0])], "it is not fetched again"
    assert not [*store.glob("tmp/*")]
    assert sorted(os.listdir(store / "l")) == ["1", "2"]


def test_who_comes_second_waits_and_fetches_nothing(command, registry, slow, image):
    name = f"127.0.0.1:{registry.port}/a:1"
    pulls = [start(command, "pull", name)]
    assert slow.started.wait(60)
    pulls += [start(command, "pull", name) for _ in range(3)]
    wait_for(lambda: registry.asked.count(("HEAD", "/v2/a/manifests/1")) >= 4)
    assert all(pull.poll() is None for pull in pulls)
    slow.go_on.set()
    answers = [(*pull.communicate(timeout=60), pull.returncode) for pull in pulls]
    assert answers == [answers[0]] * 4
    assert answers[0][1:] == ("", 0)
    for digest in image.packed:
        assert [path for _, path in registry.asked].count(f"/v2/a/blobs/{digest}") == 1


def test_who_waits_for_a_pull_that_has_stopped_is_told_so(command, run, registry, slow):
    name = f"127.0.0.1:{registry.port}/a:1"
    pull = start(command, "pull", name)
    assert slow.started.wait(60)
    pull.send_signal(signal.SIGSTOP)
    words, env = command
    waiting = start((words, {**env, "CONTAINER_LOCK_SECONDS": "0.2"}), "pull", name)
    answer = (*waiting.communicate(timeout=60), waiting.returncode)
    pull.kill()
    pull.communicate(timeout=60)
    refused((answer[2], *answer[:2]), f"process {pull.pid} on {os.uname().nodename}")


@squashfs
def test_nothing_unpacks_on_after_a_pull_that_was_killed(command, store, tmp_path):
    """A program that takes long, in the place of unsquashfs."""
    stub = tmp_path / "bin" / "unsquashfs"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid.new && mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 300\n")
    stub.chmod(0o755)
    (tmp_path / "image.sqsh").write_text("x")
    words, env = command
    pull = start((words, {**env, "PATH": f"{stub.parent}:{env['PATH']}"}), "pull", str(tmp_path / "image.sqsh"))
    wait_for((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    pull.kill()
    pull.wait(60)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"))


def test_a_full_disk_is_said_and_nothing_is_kept(command, run, registry, store, image):
    """A limit on the size of files, as a disk that is full: the first layer fits, the second does not."""
    registry.push("a", "1", image)
    name = f"127.0.0.1:{registry.port}/a:1"
    words, env = command
    limited = ["sh", "-c", f'ulimit -f {BIG // 1024}; exec "$@"', "sh", *words, "pull", name]
    done = subprocess.run(limited, env=env, capture_output=True, text=True, timeout=60)
    refused((done.returncode, done.stdout, done.stderr), name, "File too large")
    assert empty(store)
    assert len(layers(run("pull", name))) == 2


def test_the_store_of_another_user_is_refused(run, store, registry, image):
    registry.push("a", "1", image)
    name = f"127.0.0.1:{registry.port}/a:1"
    if os.geteuid() == 0:
        os.chown(store, 1, 1)
        refused(run("pull", name), "another user")
        os.chown(store, 0, 0)
    store.rename(store.with_name("elsewhere"))
    refused(run("pull", name), "CONTAINERS=1")


def test_two_registries_share_layers(run, registry, image):
    registry.push("a", "1", image)
    first = layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))
    other = Registry()
    try:
        other.push("b", "1", Image(image.layers[1]))
        assert layers(run("pull", f"127.0.0.1:{other.port}/b:1")) == first[1:]
        assert not [path for _, path in other.asked if path.endswith(image.packed[1])]
    finally:
        other.close()
