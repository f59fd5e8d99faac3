"""The wheel, in a virtual environment and a folder of their own: what someone has who typed `pip install slurmbed`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.names import NAME
from slurmbed.project import ROOT

OTHER = f"{NAME}-wheel"
FIVE_LINES = """
import slurmbed
def test_two_nodes(slurm, slurm_shared):
    job = slurm.sbatch("#!/bin/sh\\nsrun hostname", "--nodes=2", f"--output={slurm_shared}/log")
    job.wait()
    slurmbed.assert_separate_nodes(job)
"""


def call(*argv: str | Path, cwd: Path) -> str:
    """What a command prints, in an environment that knows nothing of this clone."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The programs of a new virtual environment that has the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    call(folder / "venv/bin/pip", "install", "--quiet", wheel, "pytest", cwd=folder)
    return folder / "venv" / "bin"


def test_a_cluster_in_an_empty_folder_runs_a_job_and_goes(image, installed, tmp_path):
    """`image`: the wheel's images are this clone's, for they have the same inputs."""
    tmp_path.chmod(0o777)
    slurmbed = installed / "slurmbed"
    try:
        assert "node-2" in call(slurmbed, "up", "--name", OTHER, "--nodes", "2", "--memory", "512M", cwd=tmp_path)
        (tmp_path / "test_theirs.py").write_text(FIVE_LINES)
        ran = call(installed / "pytest", f"--slurm-name={OTHER}", "--slurm-keep", cwd=tmp_path)
        assert "1 passed" in ran
        assert re.search(r"^plugins: .*\bslurmbed-", ran, re.MULTILINE)
    finally:
        assert "removed" in call(slurmbed, "clean", "--name", OTHER, cwd=tmp_path)


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
    wrong = subprocess.run([*argv, "user.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert 'Argument "nodes"' in wrong.stdout
