"""Other projects' programs as PyPI has them, each in a virtual environment of its own, on a page of docs/clients/."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import typed_environment
from harness.internals import ROOT
from harness.pages import page

SLURMBED = (sys.executable, "-c", "from slurmbed.cli.main import main; main()")


@pytest.fixture(scope="session")
def shims(cluster) -> str:
    """What `slurmbed env` prints."""
    env = {**typed_environment(), "PYTHONPATH": str(ROOT)}
    argv = [*SLURMBED, "env", "--name", cluster.name]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture
def follow(shims, workspace, tmp_path) -> Callable[[str], tuple[str, Path]]:
    """follow("submitit"): do what docs/clients/submitit.md says, in a folder that the cluster sees under its own path.

    Gives what the page's last commands print, and the folder.
    """

    def follow(name: str) -> tuple[str, Path]:
        folder = workspace / name
        folder.mkdir()
        folder.chmod(0o777)
        text = page(f"clients/{name}")
        text.write(folder)
        programs = environment(tmp_path / "venv", text.packages)
        return run(f'{shims}\nexport PATH="{programs}:$PATH"\n{text.commands[-1]}', folder), folder

    return follow


def environment(venv: Path, packages: list[str]) -> Path:
    """The folder of the programs of a new virtual environment with those packages."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=300)
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", *packages], check=True, timeout=900)
    return venv / "bin"


def run(script: str, folder: Path) -> str:
    """What a script of bash prints. If root runs the tests, jobs write to its folders too: umask."""
    argv = ["bash", "-ec", f"{'umask 0' if os.getuid() == 0 else ''}\n{script}"]
    done = subprocess.run(argv, cwd=folder, env=typed_environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
