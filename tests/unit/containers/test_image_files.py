"""Images in files: docker save, OCI layouts, squashfs; and bundles."""

import gzip
import json
import os
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from imagestore import bundle, merged, squash
from imagestore.errors import Refused
from imagestore.store import layers_of, start_config
from made import CONFIG, Image, archive, empty, layers, refused, special, squashfs


@pytest.fixture
def image():
    return Image(
        archive(("etc/one", "1"), ("etc/two", "2"), special("bin", b"2", "/usr/bin"), ("usr/bin/sh", "#!")),
        archive(("etc/.wh.two", ""), ("opt/new", "3"), special("opt/twin", b"1", "opt/new")),
        config=CONFIG,
    )


def start(folder):
    return {name: (Path(folder) / name).read_bytes() for name in ("env", "entrypoint", "cmd", "workdir", "user")}


def test_docker_save(run, image, tmp_path, overlay):
    image.docker_archive(tmp_path / "image.tar")
    answer = run("pull", f"docker-archive:{tmp_path}/image.tar")
    low, high = map(Path, layers(answer))
    assert (low / "etc/one").read_text() == "1"
    assert stat.S_ISCHR((high / "etc/two").lstat().st_mode)
    packed = tmp_path / "image.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "image.tar").read_bytes()))
    assert run("pull", f"docker-archive:{packed}") == answer


def test_docker_save_of_a_layer_that_is_there_twice(run, tmp_path):
    """Docker before 25 writes the second one as a link."""
    layer = archive(("a", "1"))
    image = Image(layer, layer)
    name = image.entry(image.config, "")["digest"][7:] + ".json"
    told = [{"Config": name, "Layers": ["x/layer.tar", "y/layer.tar"]}]
    link = special("y/layer.tar", b"2", "../x/layer.tar")
    content = archive(("x/layer.tar", layer), link, (name, image.config), ("manifest.json", json.dumps(told)))
    (tmp_path / "image.tar").write_bytes(content)
    assert len(layers(run("pull", f"docker-archive:{tmp_path}/image.tar"))) == 1


@pytest.mark.parametrize(
    "told",
    [
        [],
        {},
        [{"Config": "/etc/passwd", "Layers": []}],
        [{"Config": "config", "Layers": ["../../etc/passwd"]}],
        [{"Config": "config", "Layers": ["out"]}],
        [{"Config": "config", "Layers": [None]}],
    ],
)
def test_docker_save_with_a_forged_manifest(run, image, store, tmp_path, told):
    out = special("out", b"2", "/etc/passwd")
    content = archive(("config", image.config), out, ("manifest.json", json.dumps(told)))
    (tmp_path / "image.tar").write_bytes(content)
    refused(run("pull", f"docker-archive:{tmp_path}/image.tar"))
    assert empty(store)


@pytest.mark.parametrize("content", [None, b"", b"text", archive(("a", "1"))])
def test_no_archive_of_docker(run, store, tmp_path, content):
    if content is not None:
        (tmp_path / "image.tar").write_bytes(content)
    refused(run("pull", f"docker-archive:{tmp_path}/image.tar"), "image.tar")
    assert empty(store)


def test_a_layout(run, image, store, tmp_path, overlay):
    image.layout(tmp_path / "layout", "1")
    answer = run("pull", f"oci:{tmp_path}/layout")
    assert len(layers(answer)) == 2
    Image(archive(("other", ""))).layout(tmp_path / "layout", "2")
    assert run("pull", f"oci:{tmp_path}/layout:1") == answer
    assert len(layers(run("pull", f"oci:{tmp_path}/layout:2"))) == 1
    refused(run("pull", f"oci:{tmp_path}/layout"), "1, 2")
    refused(run("pull", f"oci:{tmp_path}/layout:3"), "1, 2")
    refused(run("pull", f"oci:{tmp_path}"), "index.json")


def test_a_layout_with_a_changed_blob(run, image, store, tmp_path):
    image.layout(tmp_path / "layout")
    blob = tmp_path / "layout/blobs/sha256" / image.packed[0][7:]
    blob.write_bytes(gzip.compress(archive(("etc/one", "forged"))))
    refused(run("pull", f"oci:{tmp_path}/layout"))
    assert empty(store)


def test_a_bundle(run, image, tmp_path, overlay):
    image.docker_archive(tmp_path / "image.tar")
    name = f"docker-archive:{tmp_path}/image.tar"
    assert run("bundle", name, tmp_path / "bundle") == (0, "", "")
    root = tmp_path / "bundle/rootfs"
    assert not (root / "etc/two").exists()
    assert (root / "opt/new").read_text() == "3"
    assert (root / "opt/twin").samefile(root / "opt/new")
    (root / "etc/one").write_text("changed")
    config = json.loads((tmp_path / "bundle/config.json").read_text())
    assert config["process"]["args"] == ["/bin/run", "a b", "", "-x"]
    assert config["process"]["cwd"] == "/work dir"
    low = layers(run("pull", name))[0]
    assert (Path(low) / "etc/one").read_text() == "1", "the bundle's files are its own"
    refused(run("bundle", name, tmp_path / "bundle"), "there already")


@squashfs
def test_a_squashfs_file(run, image, store, tmp_path, overlay):
    image.docker_archive(tmp_path / "image.tar")
    name = f"docker-archive:{tmp_path}/image.tar"
    file = tmp_path / "image.sqsh"
    assert run("save", name, file) == (0, "", "")
    answer = run("pull", file)
    root = Path(layers(answer)[0])
    assert len(layers(answer)) == 1
    assert (root / "etc/one").read_text() == "1"
    assert not os.path.lexists(root / "etc/two")
    assert os.readlink(root / "bin") == "/usr/bin"
    assert (root / "opt/twin").samefile(root / "opt/new")
    assert start(answer[1].strip()) == start(run("pull", name)[1].strip())
    assert run("pull", file) == answer
    assert run("save", file, file) == (0, "", ""), "it takes the place of the old one when it is whole"
    assert run("pull", file) != answer, "a file that changed is unpacked anew"


class Meeting:
    """Calls a function when two threads have come."""

    def __init__(self, function):
        self.function, self.both = function, threading.Barrier(2, timeout=60)

    def __call__(self, *arguments):
        self.both.wait()
        return self.function(*arguments)


def at_once(write, *targets):
    """What each of these calls raises, or None."""

    def ended(target):
        try:
            write(target)
        except Refused as error:
            return str(error)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(ended, targets))


@squashfs
def test_two_nodes_that_save_into_one_file(run, image, tmp_path, monkeypatch, overlay):
    """Two processes may have the same number there, as here: the file is that of one of them."""
    image.docker_archive(tmp_path / "image.tar")
    folder = run("pull", f"docker-archive:{tmp_path}/image.tar")[1].strip()
    monkeypatch.setattr(squash, "fill", Meeting(squash.fill))
    words = layers_of(folder), start_config(folder)
    file = str(tmp_path / "image.sqsh")
    assert at_once(lambda target: squash.write(*words, target), file, file) == [None, None]
    assert len(layers(run("pull", file))) == 1
    assert sorted(os.listdir(tmp_path)) == ["home", "image.sqsh", "image.tar", "probe", "store"]


def test_two_nodes_that_make_one_bundle(run, image, tmp_path, monkeypatch, overlay):
    image.docker_archive(tmp_path / "image.tar")
    folder = run("pull", f"docker-archive:{tmp_path}/image.tar")[1].strip()
    monkeypatch.setattr(merged, "copy", Meeting(merged.copy))
    target = str(tmp_path / "bundle")
    said = at_once(lambda target: bundle.write(folder, target), target, target)
    assert sorted(said, key=bool) == [None, f"{target}: Directory not empty"]
    assert (tmp_path / "bundle/rootfs/opt/new").read_text() == "3"
    assert sorted(os.listdir(tmp_path)) == ["bundle", "home", "image.tar", "probe", "store"]


@squashfs
def test_a_squashfs_file_of_enroot(run, tmp_path):
    """What enroot writes: /etc/environment, and /etc/rc, which starts the image."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/environment").write_text("# a comment\nA=1\nB=x y\n")
    (root / "etc/rc").write_text('exec "$@"\n')
    (root / "setuid").write_text("")
    (root / "setuid").chmod(0o4555)
    subprocess.run(["mksquashfs", root, tmp_path / "image.sqsh", "-quiet"], check=True, timeout=60)
    answer = run("pull", tmp_path / "image.sqsh")
    told = start(answer[1].strip())
    assert (told["env"], told["entrypoint"]) == (b"A=1\0B=x y\0", b"/bin/sh\0/etc/rc\0")
    assert stat.S_IMODE((Path(layers(answer)[0]) / "setuid").stat().st_mode) == 0o755


@squashfs
@pytest.mark.parametrize(("name", "said"), [("dev/null", ""), ("disk", "device")])
def test_a_squashfs_file_with_a_device(run, store, tmp_path, name, said):
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/file").write_text("x")
    words = ["mksquashfs", tmp_path / "root", tmp_path / "image.sqsh", "-quiet", "-p", f"{name} c 666 0 0 1 3"]
    subprocess.run(words, check=True, timeout=60)
    answer = run("pull", tmp_path / "image.sqsh")
    if said:
        refused(answer, said)
        assert empty(store)
    else:
        [layer] = layers(answer)
        assert (Path(layer) / "file").read_text() == "x"
        assert not (Path(layer) / "dev/null").exists(), "a container has the node's /dev"


@squashfs
@pytest.mark.parametrize("content", [b"", b"text" * 1000])
def test_no_squashfs_file(run, store, tmp_path, content):
    (tmp_path / "image.sqsh").write_bytes(content)
    refused(run("pull", tmp_path / "image.sqsh"), "image.sqsh")
    assert empty(store)


def test_no_file(run, tmp_path):
    refused(run("pull", tmp_path / "no.sqsh"), "No such file")
