"""Images by way of a file and of a registry, and how large those are that are fetched most."""

import json
import re
import secrets
import subprocess
import sys

import pytest

from harness import clusters, engine
from harness.commands import typed_environment
from harness.internals import ROOT
from harness.names import NAME
from slurmbed.cluster import transfer
from slurmbed.cluster.settings import Choices
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

LARGEST = 350_000_000  # bytes of the node image's flavor slim
# On the engine's own network, where the engine finds it: it takes any port of 127.0.0.1 without TLS.
SERVE = """
cd /tmp && apt-get -q -o Acquire::Languages=none update && apt-get -q download docker-registry || exit
dpkg -x docker-registry_*.deb /
cat >/config <<CONFIG
version: 0.1
storage: {filesystem: {rootdirectory: /registry}}
http: {addr: "127.0.0.1:0"}
CONFIG
exec docker-registry serve /config
"""


def layers(name: str) -> list[str]:
    return json.loads(engine.docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", name))


@pytest.fixture
def stand_ins():
    """What the images of a cluster would be, but empty; their choices."""
    choices = Choices(flavor="slim", digest=secrets.token_hex(6))
    names = transfer.names(choices)
    try:
        for name in names:
            change = ("--change", "LABEL org.slurmbed=image", "--change", f"LABEL kind={name}")
            run(["docker", "import", *change, "-", name], timeout=60, stdin="\0" * 10240).check()  # a tar of no files
        yield choices
    finally:
        run(["docker", "rmi", "--force", *names], timeout=60)


@pytest.fixture
def registry(slim_image):
    """The name of a registry on this machine."""
    name = f"{NAME}-registry"
    proxies = [f"--env={key}" for key in ("http_proxy", "https_proxy", "no_proxy")]
    options = ["--detach", "--name", name, "--network", "host", *proxies, "--entrypoint", "sh"]
    try:
        engine.docker("run", *options, slim_image, "-c", SERVE)
        port = []

        def listens() -> None:
            said = run(["docker", "logs", name], timeout=60).output
            port[:] = re.findall(r"listening on 127\.0\.0\.1:(\d+)", said)
            if engine.docker("inspect", "--format", "{{.State.Running}}", name).strip() != "true":
                # no network, or a suite without the package: nothing of this project is wrong
                pytest.skip(f"no registry: {said[-500:]}")
            if not port:
                raise Pending(said[-200:])

        wait_until(listens, what="the registry listens", timeout=180)
        yield f"127.0.0.1:{port[0]}"
    finally:
        run(["docker", "rm", "--force", "--volumes", name], timeout=60)


def test_slim_is_small_and_listed(slim_image):
    assert int(engine.docker("image", "inspect", "--format", "{{.Size}}", slim_image)) <= LARGEST
    argv = [sys.executable, "-c", "from slurmbed.cli.main import main; main()", "images", "list", "--json"]
    argv += ["--flavor", "slim", "--slurm", slim_image.split(":")[1].split("-")[0]]
    env = {**typed_environment(), "PYTHONPATH": str(ROOT)}
    listed = json.loads(subprocess.run(argv, env=env, capture_output=True, timeout=60, check=True).stdout)
    assert [each["state"] for each in listed[:3]] == ["here"] * 3
    assert slim_image in [each["name"] for each in listed[:3]]


def test_saved_images_are_loaded_under_their_names(stand_ins, tmp_path):
    names = transfer.names(stand_ins)
    before = {name: layers(name) for name in names}
    transfer.save(names, tmp_path / "images.tar")
    engine.docker("rmi", *names)
    assert sorted(transfer.load(tmp_path / "images.tar")) == sorted(names)
    assert {name: layers(name) for name in names} == before


def test_images_come_from_a_registry_instead_of_being_built(stand_ins, registry):
    names = transfer.names(stand_ins)
    before = {name: layers(name) for name in names}
    transfer.push(names, registry, print)
    engine.docker("rmi", *names)
    said: list[str] = []
    clusters.make_cluster(NAME, said.append).build(stand_ins, registry)
    assert {name: layers(name) for name in names} == before
    assert said == [f"pulling {registry}/{name}" for name in names], "nothing is built"
    assert registry not in engine.docker("images", "--format", "{{.Repository}}")
