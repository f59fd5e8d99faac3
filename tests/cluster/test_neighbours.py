"""What else is on the engine, or in a workspace, and is none of the cluster's: left alone, and kept off the host."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import engine, internals
from harness.clusters import make_cluster
from harness.commands import make
from harness.engine import docker
from harness.internals import ROOT
from harness.names import NAME
from slurmbed.errors import CommandError
from slurmbed.process import run

THEIRS = f"{NAME}-theirs"


def compose(*words: str, stdin: str = "") -> str:
    return run(["docker", "compose", "-p", THEIRS, *words], timeout=120, stdin=stdin).check().stdout


@pytest.fixture
def theirs(image):
    """A Compose project of somebody else; what the engine knows of it, before and after."""
    service = {"image": image, "command": ["sleep", "600"], "init": True, "volumes": ["data:/data"]}
    file = json.dumps({"services": {"login": service}, "volumes": {"data": None}})
    compose("-f", "-", "up", "--detach", stdin=file)

    def known() -> list[str]:
        found = []
        for kind in ("ps --all --no-trunc", "volume ls", "network ls"):
            form = "{{.ID}} {{.State}}" if kind.startswith("ps") else "{{.Name}}"
            found += docker(*kind.split(), "--filter", f"name={THEIRS}", "--format", form).split()
        return found

    yield known
    compose("-f", "-", "down", "--volumes", "--timeout", "1", stdin=file)


COMMANDS = ("up", "scale NODES=3", "down", "clean", "purge", "train", "mnist", "launchers", "status")


def test_a_project_that_is_not_ours_is_refused_and_not_touched(theirs):
    before, refusal = theirs(), f"the name {THEIRS} is in use by resources that slurmbed did not create: "
    assert len(before) == 4  # a container's id and state, a volume, a network
    for command in COMMANDS:
        done = make(*command.split(), f"NAME={THEIRS}")
        assert done.returncode != 0, command
        assert f"{refusal}container {THEIRS}-login-1" in done.stderr
    compose("rm", "--stop", "--force")
    for command in ("up", "clean"):  # what is left are their volume and network
        done = make(command, f"NAME={THEIRS}", "ADOPT=1")
        assert f"{refusal}network {THEIRS}_default, volume {THEIRS}_data" in done.stderr, command
    assert theirs() == before[2:]


def test_a_volume_that_has_the_name_of_ours_is_not_taken(image):
    name = f"{THEIRS}_home"
    docker("volume", "create", name)
    try:
        for command in ("up", "clean"):
            assert f"slurmbed did not create: volume {name}" in make(command, f"NAME={THEIRS}").stderr
        assert engine.volumes(name) == [name]
    finally:
        docker("volume", "rm", name)


@pytest.fixture(scope="module")
def other_clone(tmp_path_factory):
    """Runs slurmbed's command line from a second clone: other_clone(words...)."""
    folder = tmp_path_factory.mktemp("clone") / "slurmbed"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "data"), symlinks=True)
    program = [sys.executable, "-c", "from slurmbed.cli.main import main; main()"]

    def start(*words: str) -> subprocess.CompletedProcess:
        env = {**os.environ, "PYTHONPATH": str(folder)}
        argv = [*program, *words]
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300)

    start.folder = folder
    return start


def ids(cluster) -> dict[str, str]:
    """The id of each container, by service."""
    return {service: engine.inspect(cluster, service)["Id"] for service in engine.states(cluster.name)}


def test_the_cluster_of_another_clone_is_named_and_refused(slurm_cluster, slurm, other_clone):
    before = ids(slurm_cluster)
    for command in ("up", "scale NODES=3", "down", "clean", "purge", "train", "mnist"):
        done = other_clone(*command.split(), f"NAME={NAME}")
        assert done.returncode == 2, command
        assert f"the cluster {NAME} was made from {ROOT}, and has its workspace" in done.stderr
        assert f"this is {other_clone.folder}" in done.stderr
    assert ids(slurm_cluster) == before
    assert [node.name for node in slurm.nodes()] == ["node-1", "node-2"]
    assert "node-1" in other_clone("status", f"NAME={NAME}").stdout


def test_who_is_told_to_may_use_the_cluster_of_another_clone(image, other_clone):
    name = f"{NAME}-adopted"
    try:
        assert make("up", f"NAME={name}", "NODES=1", "MEMORY=512M").returncode == 0
        there = make_cluster(name)
        login = ids(there)["login"]
        adopted = other_clone("up", f"NAME={name}", "ADOPT=1", "NODES=2")
        assert adopted.returncode == 0, adopted.stderr
        assert ids(there)["login"] == login, "made anew"
        assert make("scale", f"NAME={name}", "NODES=1").returncode == 0, "it is still the cluster of the first"
        engine.remove(name, list(engine.states(name)))
        refused = other_clone("clean", f"NAME={name}")
        assert f"was made from {ROOT}" in refused.stderr, "homes and accounting are left, and are not the second's"
        assert engine.volumes(name)
        cleaned = other_clone("clean", f"NAME={name}", "ADOPT=1")
        assert cleaned.returncode == 0, cleaned.stderr
        assert engine.left(name) == []
    finally:
        make("clean", f"NAME={name}")


@pytest.fixture
def stray(slurm_cluster, image):
    """A stopped container of somebody's, from an image with the labels that Compose gave an image of this project."""
    labels = (f"com.docker.compose.project={NAME}", "com.docker.compose.service=login")
    options = (*(f"--label={label}" for label in labels), "--name", f"{NAME}-stray")
    yield docker("create", *options, image, "true").strip()
    docker("rm", "--force", f"{NAME}-stray")


def test_a_container_made_from_our_image_is_none_of_the_clusters(slurm_cluster, stray):
    again = make_cluster(NAME)
    assert [node.name for node in again.up()] == ["node-1", "node-2"]
    engine.remove(NAME, ["node-1"])
    make_cluster(NAME).up()
    assert set(engine.states(NAME)) == {*engine.SERVICES, "node-1", "node-2"}
    assert run(["docker", "inspect", stray], timeout=30).ok


def test_clean_leaves_a_container_made_from_our_image(image):
    name = f"{NAME}-stray-clean"
    labels = (f"com.docker.compose.project={name}", "com.docker.compose.service=node-1")
    stray = docker("create", *(f"--label={label}" for label in labels), "--name", name, image, "true").strip()
    try:
        make_cluster(name).clean()
        assert run(["docker", "inspect", stray], timeout=30).ok
    finally:
        docker("rm", "--force", stray)


def test_images_have_no_label_of_a_cluster(image):
    made = json.loads(docker("image", "inspect", image))[0]
    assert made["Config"]["Labels"]["com.docker.compose.project"] == "slurmbed-images"
    assert "the images are built under this name" in make("up", "NAME=slurmbed-images").stderr


HOSTILE = """
import json, os, pathlib, sys
pathlib.Path({marker!r}).parent.mkdir(parents=True, exist_ok=True)
pathlib.Path({marker!r}).touch()
record = {{"file": "/workspace/data/x.txt", "name": f"uid {{os.getuid()}}", "source": os.uname().nodename}}
print(json.dumps(record | {{"characters": 1, "train": 1, "test": 1}}))
"""


@pytest.mark.parametrize(("program", "command"), [("gpt/data.py", "train"), ("mnist/data.py", "mnist")])
def test_nothing_of_a_workspace_runs_on_the_host(slurm_cluster, workspace, tmp_path, program, command):
    """Every job may write there: what it leaves in the place of gpt/data.py must not become the host user's."""
    marker = f"{tmp_path}/on-the-host"
    file = workspace / program
    kept = file.read_text()
    file.write_text(HOSTILE.format(marker=marker))
    try:
        done = make(command, f"NAME={NAME}")  # its job fails: the program is no module of the workspace's any more
    finally:
        file.write_text(kept)
    assert not os.path.exists(marker)
    said = done.stdout.split("submitted job")[0]
    assert f"uid {uid_of_jobs(slurm_cluster)}" in said
    assert os.uname().nodename not in said


def uid_of_jobs(cluster) -> int:
    return int(cluster.as_user("alice")(["id", "-u"]).check().stdout)


def test_a_report_does_not_go_where_a_jobs_link_leads(slurm_cluster, tmp_path):
    """The host's user, root perhaps, writes into a folder where every job may put links."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    slurm_cluster.as_user("alice")(["mkdir", "-p", "runs/linked"]).check()
    slurm_cluster.as_user("alice")(["ln", "-s", str(precious), "runs/linked/report.html"]).check()
    slurm_cluster.as_user("alice")(["ln", "-s", str(tmp_path), "runs/away"]).check()
    written = internals.write(slurm_cluster, "runs/linked/report.html", b"\x89page")
    assert (written.read_bytes(), written.stat().st_uid) == (b"\x89page", uid_of_jobs(slurm_cluster))
    with pytest.raises(CommandError):
        internals.write(slurm_cluster, "runs/away/report.html", b"page")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert precious.read_text() == "kept"
    slurm_cluster.as_user("alice")(["rm", "-r", "runs/linked", "runs/away"]).check()
