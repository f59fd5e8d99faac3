"""The wheel, in a virtual environment of its own, and examples/project: what someone has who has installed slurmbed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import engine
from harness.names import NAME
from slurmbed.project import ROOT

OTHER = f"{NAME}-wheel"


def call(*argv: str | Path, cwd: Path, status: int = 0) -> str:
    """What a command prints, in an environment that knows nothing of this clone."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The programs of a new virtual environment that has the wheel, and what examples/project wants for its tests."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    project = shutil.copytree(ROOT / "examples" / "project", folder / "project")
    call(folder / "venv/bin/pip", "install", "--quiet", wheel, ".[test]", cwd=project)
    return folder / "venv" / "bin"


def test_a_projects_tests_pass_on_a_cluster_that_was_there_and_stays(slim_image, installed):
    """`slim_image`: the wheel's images are this clone's, for they have the same inputs."""
    slurmbed, project = installed / "slurmbed", installed.parent.parent / "project"
    project.chmod(0o777)
    try:
        assert "node-2" in call(slurmbed, "up", "--name", OTHER, "--nodes", "2", "--memory", "512M", cwd=project)
        assert "-slim-" in engine.docker("inspect", "--format={{.Config.Image}}", f"{OTHER}-login-1")
        ran = call(installed / "pytest", f"--slurm-name={OTHER}", cwd=project)
        assert "1 passed" in ran
        assert re.search(r"^plugins: .*\bslurmbed-", ran, re.MULTILINE)
    finally:
        assert "removed" in call(slurmbed, "clean", "--name", OTHER, cwd=project)
    assert "for example: slurmbed scale NODES=3" in call(slurmbed, "scale", "--name", OTHER, cwd=project, status=2)


def test_init_gives_a_workspace_whose_jobs_are_those_of_the_clone(installed, tmp_path):
    call(installed / "slurmbed", "init", "mine", cwd=tmp_path)
    scripts = {path.name for path in (ROOT / "workspace" / "jobs").iterdir()}
    assert scripts == {path.name for path in (tmp_path / "mine" / "jobs").iterdir()}


def test_the_public_names_are_typed(installed, tmp_path):
    """As a type checker sees the installed package, not the clone."""
    (tmp_path / "user.py").write_text(
        "from slurmbed import Cluster, Job, Settings, Slurm\n"
        "cluster = Cluster(Settings(nodes=4, memory=2048))\n"
        "job: Job = cluster.slurm.wait_completed('1', timeout=60)\n"
        "slurm: Slurm = cluster.slurm\n"
    )
    argv = [sys.executable, "-m", "mypy", "--python-executable", installed / "python", "--strict"]
    assert "Success" in call(*argv, "--cache-dir", tmp_path / "cache", "user.py", cwd=tmp_path)
    (tmp_path / "user.py").write_text("from slurmbed import Settings\nSettings(nodes=[4])\n")
    assert 'Argument "nodes"' in call(*argv, "user.py", cwd=tmp_path, status=1)
