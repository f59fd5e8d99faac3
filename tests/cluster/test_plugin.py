"""The pytest plugin, as another project has it: a project of its own, with tests that pass and one that fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import engine
from harness.commands import typed_environment
from harness.internals import ROOT
from harness.names import NAME

OTHER = f"{NAME}-plugin"
TESTS = """
import subprocess

import pytest
from slurmbed import JobFailed, assert_separate_nodes


def test_ranks_have_nodes_of_their_own(slurm, slurm_shared):
    job = slurm.sbatch("#!/bin/bash\\nsrun hostname", "--nodes=2", f"--output={slurm_shared}/out.log")
    job.wait()
    assert (job.state, job.exit_code) == ("COMPLETED", 0)
    assert assert_separate_nodes(job) == {0: "node-1", 1: "node-2"}
    assert sorted((slurm_shared / "out.log").read_text().split()) == ["node-1", "node-2"]


def test_ranks_that_share_a_node_are_found(slurm, slurm_shared):
    script = slurm_shared / "two.sh"
    script.write_text("#!/bin/bash\\nsrun hostname\\n")
    job = slurm.sbatch(script, "--nodes=1", "--ntasks=2", "--overcommit", f"--output={slurm_shared}/out.log")
    job.wait()
    with pytest.raises(AssertionError, match="ranks share node-1: rank 0 on node-1, rank 1 on node-1"):
        assert_separate_nodes(job)


def test_a_job_that_fails_says_why(slurm, slurm_shared):
    job = slurm.sbatch("#!/bin/bash\\necho it broke; exit 3", f"--output={slurm_shared}/out.log")
    with pytest.raises(JobFailed, match=r"ended FAILED(.|\\n)*it broke"):
        job.wait()
    assert job.exit_code == 3


def test_a_lost_node_comes_back(slurm_faults, slurm_nodes):
    assert [node.name for node in slurm_nodes] == ["node-1", "node-2"]
    slurm_faults.cut("node-1")
    slurm_faults.kill("node-2")
    slurm_faults.pause("slurmdbd")


def test_all_is_healed(slurm, slurm_nodes):
    assert all(node.works for node in slurm_nodes)
    assert slurm.sbatch("#!/bin/sh\\nsrun true", "--nodes=2", "--output=/dev/null").wait().state == "COMPLETED"


def test_the_project_is_on_every_node(slurm, slurm_project, slurm_user):
    program = "import theirs, getpass; print(theirs.X, getpass.getuser())"
    said = slurm.runner(["srun", "--nodes=2", "python3", "-c", program])
    assert said.check().stdout.splitlines() == [f"42 {slurm_user}"] * 2


def test_nodes_have_what_jobs_need_and_no_more(slurm_cluster):
    assert slurm_cluster.choices().flavor == "slim"


def test_the_rest_interface(slurm_rest, slurm_user):
    job_id = slurm_rest.submit("#!/bin/sh\\nid -un", standard_output="/dev/null")
    assert slurm_rest.wait(job_id, 120).state == "COMPLETED"


def test_ssh(slurm_ssh):
    done = subprocess.run([*slurm_ssh, "hostname"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "login", done.stderr


def test_that_fails(slurm):
    assert slurm.nodes() == []
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("Their Project")
    (folder / "test_jobs.py").write_text(TESTS)
    (folder / "theirs.py").write_text("X = 42\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "theirs"\nversion = "1"\n[tool.hatch.build]\ninclude = ["theirs.py"]\n'
    )
    return folder


def run_pytest(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """With the plugin of this clone, and no other."""
    env = {**typed_environment(), "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    env = {name: value for name, value in env.items() if name != "PYTEST_XDIST_WORKER"}
    argv = [sys.executable, "-m", "pytest", "-p", "slurmbed.pytest_plugin", "-v", "-rA", *words]
    return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=900)


def test_a_projects_tests_run_on_a_cluster_that_goes_away(slim_image, project, tmp_path):
    size = tmp_path / "cluster.yaml"
    size.write_text("nodes: [{name: cpu, count: 2, cpus: 2, memory: 1G}]\n")
    try:
        done = run_pytest(project, f"--slurm-name={OTHER}", f"--slurm-config={size}", TMPDIR=str(tmp_path))
    finally:
        left = engine.left(OTHER)
    passed = set(re.findall(r"^PASSED test_jobs.py::(\w+)", done.stdout, re.MULTILINE))
    expected = set(re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE))
    assert passed == expected - {"test_that_fails"}, done.stdout + done.stderr
    [bundle] = re.findall(r"logs of daemons and jobs, and Slurm's state: (\S+)", done.stdout)
    assert "slurmctld version" in (Path(bundle) / "daemons" / "slurmctld.log").read_text()
    assert left == []


@pytest.mark.parametrize(("word", "status"), [("fail", 1), ("skip", 0)])
def test_without_an_engine_tests_fail_or_are_skipped_with_the_reason(project, word, status):
    engine_that_is_not_there = {"DOCKER_HOST": "tcp://127.0.0.1:9"}
    done = run_pytest(project, "-k", "ssh or fails", f"--slurm-missing={word}", **engine_that_is_not_there)
    assert done.returncode == status
    assert "DOCKER_HOST=tcp://127.0.0.1:9 does not answer" in done.stdout
