"""slurm-sdk's packaging as containers: an image is built on this machine, pushed to the cluster's registry, and run."""

import ast
import shutil

import pytest

from harness import engine, internals
from slurmbed.process import run

# slurm-sdk calls `docker build -t IMAGE --progress plain`, which Docker refuses without its plugin buildx.
WITHOUT_BUILDX = """#!/bin/sh
if [ "$1" = build ] && [ "$4" = --progress ]; then
  image=$3
  shift 5
  set -- build -t "$image" "$@"
fi
exec {docker} "$@"
"""


@pytest.fixture
def slurm_cluster(slim_image, slurm_start):
    internals.require_containers_in_jobs(slim_image)
    with slurm_start("sdk", nodes=2, memory="1G", flavor="slim", containers=True) as cluster:
        yield cluster


@pytest.fixture
def python_image(slurm_cluster, with_a_network):
    """What stands for Docker Hub's image of Python, as no registry may answer: the node image, with slurm-sdk."""
    made = f"{slurm_cluster.name}-python"
    start = [word for word in with_a_network if word != "--rm"]
    start[start.index("--user") + 1] = "0:0"
    install = ["python3", "-m", "pip", "install", "--quiet", "--break-system-packages", "slurm-sdk==0.4.6"]
    container = start[start.index("--name") + 1]
    variables = ("PIP_BREAK_SYSTEM_PACKAGES=1", "HOME=/root", "PIP_CERT=")
    changes = ["ENTRYPOINT []", 'CMD ["python3"]', *(f"ENV {each}" for each in variables)]
    try:
        run([*start, *install], timeout=600).check()
        engine.docker("commit", *(word for each in changes for word in ("--change", each)), container, made)
        yield made
    finally:
        run(["docker", "rm", "--force", container], timeout=60)
        run(["docker", "rmi", made], timeout=60)


@pytest.fixture
def registry(slurm_cluster):
    """The cluster's, as this machine calls it. What was built for it leaves the machine again."""
    name = f"localhost:{engine.port(slurm_cluster, 'registry', 5000)}"
    yield name
    built = engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={name}/*").split()
    if built:
        engine.docker("rmi", *built)


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """A docker that builds as slurm-sdk wants it: this machine's, or one in front of it."""
    if run(["docker", "buildx", "version"], timeout=60).ok:
        return
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(WITHOUT_BUILDX.format(docker=shutil.which("docker")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.mark.client
def test_slurm_sdk_in_containers(follow, python_image, registry, builder, slurm_cluster):
    said = follow("slurm-sdk-containers", {"localhost:5000": registry, "python:3.13-slim": python_image})
    best = ast.literal_eval(said[-1])
    assert (best["rate"], best["loss"]) == (0.3, 0.0)
    assert best["node"] in ("node-1", "node-2")
    assert best["code"] == "/study/study.py", "the code is the image's"
    rows = ("sacct", "--allocations", "--noheader", "--parsable2", "--starttime=now-1days", "--format=JobName,State")
    done = slurm_cluster.slurm.runner([*rows, "--name=train,best"]).check().stdout.split()
    assert sorted(done) == ["best|COMPLETED", *["train|COMPLETED"] * 3]
