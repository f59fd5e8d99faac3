"""The wheel, in a virtual environment of its own, and examples/project: what someone has who has installed slurmbed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import clusters, engine
from harness.action import ACTION, Runner
from harness.names import NAME
from slurmbed.project import ROOT

OTHER = f"{NAME}-wheel"
STEPS = [step["name"] for step in ACTION["runs"]["steps"]]


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


def test_the_action_gives_a_projects_tests_a_cluster_and_uploads_its_logs(slim_image, installed, tmp_path):
    """`slim_image`: the wheel's images are this clone's, for they have the same inputs."""
    project = installed.parent.parent / "project"
    project.chmod(0o777)
    (project / "cluster.yaml").write_text("nodes: [{name: cpu, count: 2, cpus: 1, memory: 512M}]\n")
    commands = f"""
        {installed}/pytest --slurm-name=$SLURMBED_NAME
        sbatch --wait --nodes=2 --output=out.log --wrap 'srun hostname' && sort out.log
        slurmbed scale || exit 7"""
    uploaded = []

    def upload(inputs: dict[str, str]) -> dict[str, str]:
        uploaded.append(Path(inputs["path"]))
        return {}

    first = Runner(project, tmp_path, {"actions/cache": nothing_cached})
    first.use(last=STEPS[2], name=OTHER)
    assert (first.ran, first.failed) == (STEPS[:3], False), first.output
    runner = Runner(project, tmp_path, {"actions/cache": what_the_first_saved, "actions/upload-artifact": upload})
    try:
        runner.use(name=OTHER, config="cluster.yaml", run=commands)
    finally:
        left = engine.left(OTHER)
        if left:
            clusters.make_cluster(OTHER, adopt=True).clean()
    assert runner.ran == STEPS, runner.output
    assert re.search(r"^plugins: .*\bslurmbed-", runner.output, re.MULTILINE)
    assert len(re.findall(r"^slurmbed-\w+:24\.11-slim-", runner.output, re.MULTILINE)) == 3, "not loaded from the file"
    assert "1 passed" in runner.output
    assert "node-1\nnode-2\n" in runner.output
    assert "for example: slurmbed scale --nodes 3" in runner.output
    [logs] = uploaded
    assert '"slurmbed-node:24.11-slim-' in (logs / "containers.json").read_text()
    assert "node-[1-2]" in (logs / "slurm" / "jobs.txt").read_text()
    assert left == []


def nothing_cached(inputs: dict[str, str]) -> dict[str, str]:
    assert re.fullmatch(r"slurmbed-X64-24\.11-slim-[0-9a-f]{12}", inputs["key"])
    return {"cache-hit": ""}


def what_the_first_saved(inputs: dict[str, str]) -> dict[str, str]:
    assert Path(inputs["path"]).stat().st_size > 100 << 20
    return {"cache-hit": "true"}


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
