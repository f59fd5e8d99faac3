"""Images that a test makes, a registry that serves them, and what container-image answers."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[3] / "scripts" / "containers"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
CONFIG = {
    "Env": ["PATH=/bin", "LINES=a\nb", "EMPTY="],
    "Entrypoint": ["/bin/run", "a b"],
    "Cmd": ["", "-x"],
    "WorkingDir": "/work dir",
    "User": "nobody",
}

# The suite `containers` runs these tests in the node image, which has all of it.
squashfs = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")


def digest_of(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def archive(*members):
    """A tar archive of (NAME, CONTENT) or (NAME, CONTENT, MODE) for files, (NAME, None) for folders, and TarInfos."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            content = b""
            if isinstance(member, tuple):
                name, content, *mode = member
                member = tarfile.TarInfo(name)
                member.mode, member.mtime = mode[0] if mode else 0o644, 1_000_000_000
                if content is None:
                    member.type, member.mode, content = tarfile.DIRTYPE, 0o755, b""
                content = content.encode() if isinstance(content, str) else content
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def special(name, kind, target="", mode=0o644, **fields):
    """A member that is neither file nor folder."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.mtime = kind, target, mode, 1_000_000_000
    for field, value in fields.items():
        setattr(member, field, value)
    return member


class Image:
    """layers: archives, lowest first. blobs: what a registry or a layout holds, DIGEST -> bytes."""

    def __init__(self, *layers, config=None, pack=gzip.compress):
        self.layers = layers
        self.blobs = {}
        packed = [pack(layer) for layer in layers]
        self.config = json.dumps(
            {
                "architecture": HERE,
                "os": "linux",
                "config": config or {},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
            }
        ).encode()
        self.packed = [self.keep(content) for content in packed]
        self.manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.entry(self.config, "application/vnd.oci.image.config.v1+json"),
            "layers": [self.entry(content, "application/vnd.oci.image.layer.v1.tar+gzip") for content in packed],
        }
        self.keep(self.config)

    def keep(self, content):
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    @staticmethod
    def entry(content, kind, **fields):
        return {"mediaType": kind, "digest": digest_of(content), "size": len(content), **fields}

    @property
    def content(self):
        return json.dumps(self.manifest).encode()

    def docker_archive(self, path):
        members = [(f"layer{number}/layer.tar", layer) for number, layer in enumerate(self.layers)]
        name = f"{digest_of(self.config)[7:]}.json"
        entries = [{"Config": name, "RepoTags": ["x:1"], "Layers": [layer for layer, _ in members]}]
        path.write_bytes(archive(*members, (name, self.config), ("manifest.json", json.dumps(entries))))

    def layout(self, folder, tag="1"):
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        for digest, content in {**self.blobs, digest_of(self.content): self.content}.items():
            (blobs / digest[7:]).write_bytes(content)
        known = folder / "index.json"
        entries = json.loads(known.read_bytes())["manifests"] if known.exists() else []
        entries.append(self.entry(self.content, MANIFEST, annotations={"org.opencontainers.image.ref.name": tag}))
        known.write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))


class Registry:
    """A registry on a free port of this machine, until close().

    asked: (METHOD, PATH) of all requests. token: is asked for, if set, and handed out for `login`, a Basic value or
    None for everybody. changed: PATH -> function of the handler and the bytes that are due, which answers instead."""

    def __init__(self):
        self.manifests, self.blobs, self.changed, self.asked = {}, {}, {}, []
        self.token = self.login = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):  # the name is http.server's
                registry.answer(self)

            do_HEAD = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, args=[0.05])
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(30)

    def push(self, name, tag, image, kind=MANIFEST):
        """image: an Image, or the bytes of an index."""
        content = image.content if isinstance(image, Image) else image
        self.blobs.update(image.blobs if isinstance(image, Image) else {})
        self.manifests[f"{name}/manifests/{tag}"] = self.manifests[f"{name}/manifests/{digest_of(content)}"] = (
            content,
            kind,
        )
        return digest_of(content)

    def answer(self, handler):
        path = handler.path.partition("?")[0]
        self.asked.append((handler.command, path))
        if path == "/token":
            allowed = self.login is None or handler.headers.get("Authorization") == self.login
            return self.send(handler, json.dumps({"token": self.token}).encode(), status=200 if allowed else 401)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="http://127.0.0.1:{self.port}/token",service="test",scope="repository:a:pull"'
            return self.send(handler, b"{}", status=401, headers={"WWW-Authenticate": challenge})
        content, kind = self.manifests.get(path.removeprefix("/v2/"), (None, "application/octet-stream"))
        if "/blobs/" in path:
            content = self.blobs.get(path.rpartition("/")[2])
        if content is None:
            return self.send(handler, b"{}", status=404)
        if path in self.changed:
            return self.changed[path](handler, content)
        return self.send(handler, content, kind)

    @staticmethod
    def send(handler, content, kind="application/json", status=200, headers=None):
        handler.send_response(status)
        about = {"Content-Type": kind, "Content-Length": len(content), "Docker-Content-Digest": digest_of(content)}
        for name, value in {**about, **(headers or {})}.items():
            handler.send_header(name, str(value))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)


def layers(answer):
    """The folders of layers of the image that was pulled."""
    status, output, errors = answer
    assert (status, errors) == (0, "")
    return (Path(output.rstrip("\n")) / "layers").read_text().splitlines()


def refused(answer, *words):
    """The one line that says why, for the user."""
    status, output, errors = answer
    assert (status, output) == (1, "")
    assert errors.startswith("container-image: ")
    assert errors.count("\n") == 1
    for word in words:
        assert word in errors


def empty(store):
    """Nothing is there that could be taken for an image or a layer."""
    return not [path for path in store.rglob("*") if not path.is_dir() and path.name != "lock"] and not [
        *store.glob("l/*"),
        *store.glob("images/*"),
        *store.glob("tmp/*"),
    ]


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # between two looks


def compiled(folder: Path, main: str, *sources: str) -> Path:
    """A program of parts of the plugin and a main of the test's own; skips where there is no compiler."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    (folder / "main.c").write_text(main)
    scripts = PROGRAMS.parent
    words = ["gcc", f"-I{scripts}", "-Wall", "-Wextra", "-o", folder / "program", folder / "main.c"]
    subprocess.run([*words, *(scripts / name for name in sources)], check=True, timeout=60)
    return folder / "program"
