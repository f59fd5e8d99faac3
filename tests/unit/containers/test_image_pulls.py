"""container-image pull, from a registry that the test serves."""

import base64
import gzip
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from made import CONFIG, HERE, INDEX, MANIFEST, Image, Registry, archive, digest_of, empty, layers, refused


@pytest.fixture
def image():
    return Image(archive(("etc/one", "1"), ("etc/two", "2")), archive(("etc/two", "2b")), config=CONFIG)


def test_an_image_with_its_layers_and_its_start(run, registry, image):
    registry.push("a/b", "1", image)
    status, output, errors = run("pull", f"127.0.0.1:{registry.port}/a/b:1")
    assert (status, errors) == (0, "")
    folder = Path(output.rstrip("\n"))
    assert output == f"{folder}\n"
    low, high = map(Path, (folder / "layers").read_text().splitlines())
    assert ((low / "etc/one").read_text(), (high / "etc/two").read_text()) == ("1", "2b")
    assert (folder / "env").read_bytes() == b"PATH=/bin\0LINES=a\nb\0EMPTY=\0"
    assert (folder / "entrypoint").read_bytes() == b"/bin/run\0a b\0"
    assert (folder / "cmd").read_bytes() == b"\0-x\0"
    assert ((folder / "workdir").read_text(), (folder / "user").read_text()) == ("/work dir", "nobody")


def test_what_is_there_is_not_fetched_again(run, registry, image):
    digest = registry.push("a", "1", image)
    name = f"127.0.0.1:{registry.port}/a"
    first = run("pull", f"{name}:1")
    registry.asked.clear()
    assert run("pull", f"{name}:1") == first
    assert registry.asked == [("HEAD", "/v2/a/manifests/1")]
    registry.asked.clear()
    assert run("pull", f"{name}@{digest}") == first
    assert registry.asked == []


def test_a_tag_that_is_pushed_again_brings_only_what_is_new(run, registry, image):
    registry.push("a", "1", image)
    name = f"127.0.0.1:{registry.port}/a:1"
    before = layers(run("pull", name))
    new = archive(("etc/three", "3"))
    registry.push("a", "1", Image(*image.layers, new, config=CONFIG))
    registry.asked.clear()
    after = layers(run("pull", name))
    assert after[:2] == before
    assert (Path(after[2]) / "etc/three").read_text() == "3"
    assert [path for _, path in registry.asked if path.endswith(digest_of(gzip.compress(new, mtime=0))[7:])] == []
    fetched = [path.rpartition("/")[2] for _, path in registry.asked if "/blobs/" in path]
    assert not set(fetched) & set(image.packed)
    assert len(fetched) == 2, "the configuration and the new layer"


def test_the_registry_of_the_cluster_by_the_hosts_name_for_it(run, registry, image, tmp_path):
    registry.push("a", "latest", image)
    (tmp_path / "registry").write_text(f"5999 127.0.0.1:{registry.port}\n")
    assert len(layers(run("pull", "localhost:5999/a"))) == 2


def test_a_token_is_asked_for_when_the_registry_wants_one(run, registry, image):
    registry.token = "secret-token"
    registry.push("a", "1", image)
    assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 2
    assert ("GET", "/token") in registry.asked


@pytest.mark.parametrize("place", [".docker/config.json", ".config/enroot/.credentials", None])
def test_a_login(run, registry, image, tmp_path, place):
    login = base64.b64encode(b"alice:word").decode()
    registry.token, registry.login = "t", f"Basic {login}"
    registry.push("a", "1", image)
    host = f"127.0.0.1:{registry.port}"
    if place:
        file = tmp_path / "home" / place
        file.parent.mkdir(parents=True)
        auths = json.dumps({"auths": {host: {"auth": login}}})
        file.write_text(auths if "docker" in place else f"# mine\nmachine {host} login alice password word\n")
        assert len(layers(run("pull", f"{host}/a:1"))) == 2
    else:
        refused(run("pull", f"{host}/a:1"), "login")


def test_of_an_index_the_image_for_this_machine(run, registry, image):
    other = Image(archive(("other", "")))
    for each in (image, other):
        registry.push("a", "unused", each)
    entries = [
        Image.entry(other.content, MANIFEST, platform={"os": "linux", "architecture": "z80"}),
        Image.entry(b"x", MANIFEST, platform={"os": "unknown", "architecture": "unknown"}),
        Image.entry(image.content, MANIFEST, platform={"os": "linux", "architecture": HERE}),
    ]
    registry.push("a", "1", json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), INDEX)
    assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 2
    registry.push("a", "2", json.dumps({"schemaVersion": 2, "manifests": entries[:2]}).encode(), INDEX)
    refused(run("pull", f"127.0.0.1:{registry.port}/a:2"), f"linux/{HERE}", "it has linux/z80")


def test_a_layer_that_is_there_twice_is_mounted_once_where_it_is_seen(run, registry):
    low, middle = archive(("a", "1")), archive(("a", "2"))
    registry.push("a", "1", Image(low, middle, low))
    found = layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))
    assert [(Path(layer) / "a").read_text() for layer in found] == ["2", "1"]


def test_layers_may_be_without_compression(run, registry):
    registry.push("a", "1", Image(archive(("a", "1")), pack=bytes))
    assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 1


@pytest.mark.skipif(not shutil.which("zstd"), reason="zstd is not installed")
def test_zstd_where_python_has_it(run, registry):
    def pack(layer):
        return subprocess.run(["zstd", "-q"], input=layer, capture_output=True, check=True, timeout=60).stdout

    registry.push("a", "1", Image(archive(("a", "1")), pack=pack))
    answer = run("pull", f"127.0.0.1:{registry.port}/a:1")
    if sys.version_info < (3, 14):
        refused(answer, "zstd", "build it with gzip")
    else:
        assert (Path(layers(answer)[0]) / "a").read_text() == "1"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python reads zstd")
def test_zstd_where_python_has_it_not_is_said(run, registry, store):
    registry.push("a", "1", Image(archive(("a", "1")), pack=lambda layer: b"\x28\xb5\x2f\xfd" + layer))
    refused(run("pull", f"127.0.0.1:{registry.port}/a:1"), "zstd", "build it with gzip")
    assert empty(store)


@pytest.mark.parametrize("kind", ["application/vnd.docker.distribution.manifest.v2+json", MANIFEST])
def test_dockers_own_manifests_are_taken_too(run, registry, image, kind):
    image.manifest["mediaType"] = kind
    registry.push("a", "1", image, kind)
    entries = [Image.entry(image.content, kind, platform={"os": "linux", "architecture": HERE})]
    lists = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json"}
    registry.push("a", "2", json.dumps({**lists, "manifests": entries}).encode(), lists["mediaType"])
    assert run("pull", f"127.0.0.1:{registry.port}/a:1") == run("pull", f"127.0.0.1:{registry.port}/a:2")
    assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 2


@pytest.mark.parametrize("name", ["a:2", "b:1"])
def test_no_such_image(run, registry, image, store, name):
    registry.push("a", "1", image)
    refused(run("pull", f"127.0.0.1:{registry.port}/{name}"), name, "no such image")
    assert empty(store)


def test_no_registry(run, store):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused(run("pull", f"127.0.0.1:{free.getsockname()[1]}/a"), "does not answer")
    assert empty(store)


def wrong(handler, content):
    """As long as what is due, with one other byte."""
    Registry.send(handler, content[:-1] + bytes([content[-1] ^ 1]))


def longer(handler, content):
    Registry.send(handler, content + b"\0" * 100)


def cut(handler, content):
    """Half of it, then the end of the connection."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])


def reset(handler, content):
    cut(handler, content)
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def test_a_registry_that_drips_is_given_up(run, registry, store, image, monkeypatch):
    """It would hold up the user's other pulls. Each drop comes long before a connection is taken for dead."""
    from imagestore import registry as reader

    over = threading.Event()

    def drip(handler, content):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with suppress(OSError):
            while not over.wait(0.02):
                handler.wfile.write(b"\x1f")

    monkeypatch.setattr(reader, "SLOWEST", 1 << 40)
    monkeypatch.setattr(reader, "TIMEOUT", 2)
    image = Image(archive(("a", os.urandom(1 << 20))))
    registry.push("a", "1", image)
    registry.changed[f"/v2/a/blobs/{image.packed[0]}"] = drip
    try:
        refused(run("pull", f"127.0.0.1:{registry.port}/a:1"), "bytes in a second")
    finally:
        over.set()
    assert empty(store)


@pytest.mark.parametrize(
    ("how", "reason"), [(wrong, "digest"), (longer, "longer|digest"), (cut, "ended after"), (reset, "broke|ended")]
)
@pytest.mark.parametrize("what", ["manifest", "config", "layer"])
def test_what_is_not_what_its_digest_says_is_refused(run, registry, store, how, reason, what):
    image = Image(archive(("a", os.urandom(200_000))))
    digest = registry.push("a", "1", image)
    path = {
        "manifest": f"manifests/{digest}",
        "config": f"blobs/{digest_of(image.config)}",
        "layer": f"blobs/{image.packed[0]}",
    }[what]
    registry.changed[f"/v2/a/{path}"] = how
    answer = run("pull", f"127.0.0.1:{registry.port}/a:1")
    refused(answer)
    if what != "manifest":
        assert any(word in answer[2] for word in reason.split("|")), answer[2]
    assert empty(store)
    registry.changed.clear()
    assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 1


def test_a_layer_whose_archive_is_another_one(run, registry, store):
    """The blob is what the manifest says; the archive in it is not what the configuration says."""
    image = Image(archive(("a", "1")), pack=lambda layer: gzip.compress(archive(("a", "2"))))
    registry.push("a", "1", image)
    refused(run("pull", f"127.0.0.1:{registry.port}/a:1"), "digest")
    assert empty(store)


def config_of(image, **changes):
    """The image with another configuration."""
    parsed = json.loads(image.config)
    parsed.update(changes)
    content = json.dumps(parsed).encode()
    image.keep(content)
    image.manifest["config"] = image.entry(content, "application/vnd.oci.image.config.v1+json")
    return image


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.manifest.update(schemaVersion=1),
        lambda image: image.manifest.update(layers="x"),
        lambda image: image.manifest.update(layers=[]),
        lambda image: image.manifest.update(layers=[{"digest": "sha256:../../../etc/passwd", "size": 1}]),
        lambda image: image.manifest.update(layers=[{"digest": image.packed[0], "size": -1}]),
        lambda image: image.manifest.update(layers=image.manifest["layers"] * 200),
        lambda image: image.manifest.update(config=None),
        lambda image: image.manifest["config"].update(size=1),
        lambda image: image.manifest["config"].update(digest=image.packed[0]),
        lambda image: config_of(image, rootfs=None),
        lambda image: config_of(image, rootfs={"diff_ids": ["sha256:.."]}),
        lambda image: config_of(image, config=[1]),
        lambda image: config_of(image, config={"Env": ["A=\0"]}),
        lambda image: config_of(image, config={"Env": ["none"]}),
        lambda image: config_of(image, config={"Env": "A=1"}),
        lambda image: config_of(image, config={"Cmd": [["a"]]}),
        lambda image: config_of(image, config={"WorkingDir": "/a\n/b"}),
        lambda image: config_of(image, config={"Cmd": ["\ud800"]}),
    ],
)
def test_a_malformed_image_is_refused(run, registry, store, change):
    image = Image(archive(("a", "1")))
    change(image)
    registry.push("a", "1", image)
    refused(run("pull", f"127.0.0.1:{registry.port}/a:1"))
    assert empty(store)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b'"a"', b"{}" + b" " * (5 << 20)])
def test_a_manifest_that_is_no_manifest(run, registry, store, content):
    registry.push("a", "1", content)
    refused(run("pull", f"127.0.0.1:{registry.port}/a:1"))
    assert empty(store)


def test_a_login_does_not_go_to_where_a_redirect_leads(run, registry, image):
    other = Registry()
    try:
        seen = []
        registry.token = "t"
        registry.push("a", "1", image)
        for digest in image.packed:
            other.manifests[f"moved/{digest}"] = (image.blobs[digest], "application/octet-stream")
            other.changed[f"/v2/moved/{digest}"] = lambda handler, content: (
                seen.append(handler.headers.get("Authorization")),
                Registry.send(handler, content),
            )
            registry.changed[f"/v2/a/blobs/{digest}"] = lambda handler, _: Registry.send(
                handler,
                b"",
                status=307,
                headers={"Location": f"http://127.0.0.1:{other.port}/v2/moved/{handler.path.rpartition('/')[2]}"},
            )
        assert len(layers(run("pull", f"127.0.0.1:{registry.port}/a:1"))) == 2
        assert seen == [None, None]
    finally:
        other.close()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1:9/a"])
def test_a_redirect_to_elsewhere_than_http_is_refused(run, registry, image, store, place):
    registry.push("a", "1", image)
    registry.changed[f"/v2/a/blobs/{image.packed[0]}"] = lambda handler, _: Registry.send(
        handler, b"", status=302, headers={"Location": place}
    )
    refused(run("pull", f"127.0.0.1:{registry.port}/a:1"), place)
    assert empty(store)
