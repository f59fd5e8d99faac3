"""Slurm's commands on the host, and what the host can know of a cluster."""

import base64
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from harness import engine, jobs
from harness.commands import hear_ctrl_c, typed_environment
from harness.internals import ROOT
from harness.names import NAME
from slurmbed.wait import Pending, wait_until

SLURMBED = (sys.executable, "-c", "from slurmbed.cli.main import main; main()")


def slurmbed(*words: str, stdin: str = "") -> subprocess.CompletedProcess:
    argv = [*SLURMBED, words[0], "--name", NAME, *words[1:]]
    env = {**typed_environment(), "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def shell(slurm_cluster, workspace):
    """Start a shell command on the host, in the workspace, after `eval "$(slurmbed env)"`."""
    exports = slurmbed("env")
    assert exports.returncode == 0, exports.stderr

    def shell(command: str, **options) -> subprocess.Popen:
        argv = ["bash", "-c", f"{exports.stdout}\n{command}"]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            argv, cwd=workspace, env=typed_environment(), text=True, preexec_fn=hear_ctrl_c, **options
        )

    return shell


def test_sbatch_and_srun_work_in_a_shared_folder_under_its_own_path(shell, workspace):
    typed = """
        export GREETING='good morning'
        sbatch --wait -N2 --output=runs/from-the-host.log --wrap 'srun hostname; echo $GREETING; pwd' || exit
        srun --ntasks=1 tr a-z A-Z
        srun --ntasks=1 sh -c 'exit 7'"""
    with shell(typed) as command:
        said, errors = command.communicate("typed here\n", timeout=180)
    assert command.returncode == 7, errors
    assert said.splitlines()[-1] == "TYPED HERE"
    *nodes, greeting, folder = (workspace / "runs" / "from-the-host.log").read_text().splitlines()
    assert sorted(nodes) == ["node-1", "node-2"]
    assert (greeting, folder) == ("good morning", str(workspace))


def test_a_job_script_in_a_folder_that_the_cluster_does_not_see(shell, tmp_path, workspace):
    script = tmp_path / "temporary.sh"
    script.write_text("#!/bin/sh\necho $SLURM_JOB_NAME $1\n")
    with shell(f"sbatch --wait --ntasks=1 --output=runs/temporary.log {script} argument") as command:
        _, errors = command.communicate(timeout=180)
    assert command.returncode == 0, errors
    assert (workspace / "runs" / "temporary.log").read_text() == "temporary.sh argument\n"


def test_env_tells_root_that_jobs_are_not_roots(slurm_cluster):
    assert ("jobs run as alice" in slurmbed("env").stderr) == (os.geteuid() == 0)
    assert slurmbed("env", "--user", "root").stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_job_step(shell, slurm_cluster, workspace, number):
    """To the whole process group, as a terminal sends Ctrl-C; srun wants two of those within a second."""
    mark = workspace / "runs" / f"step-{number.name}"
    with shell(f"exec srun --ntasks=1 sh -c 'echo >{mark}; sleep 600'", start_new_session=True) as command:
        wait_until_there(mark)
        deadline = time.monotonic() + 120
        while command.poll() is None and time.monotonic() < deadline:
            os.killpg(command.pid, number)
            time.sleep(0.3)  # not a wait for anything: srun wants two signals within a second
        assert command.wait(timeout=30) != 0
    jobs.wait_until_idle(slurm_cluster)


def wait_until_there(path: Path) -> None:
    def check() -> None:
        if not path.exists():
            raise Pending("not there")

    wait_until(check, what=str(path), timeout=120)


def test_srun_has_the_terminal_of_the_caller(shell):
    ours, theirs = pty.openpty()
    try:
        with shell("srun --pty sh -c 'tty; exit 3'", stdin=theirs, stdout=theirs, stderr=theirs) as command:
            assert command.wait(timeout=120) == 3
        assert "/dev/pts/" in os.read(ours, 1000).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_exec_runs_on_any_service_with_input_and_exit_status(slurm_cluster):
    done = slurmbed(
        "exec", "--node", "node-2", "--user", "root", "--", "sh", "-c", "hostname; id -un; cat; exit 5", stdin="in"
    )
    assert (done.stdout.split(), done.returncode) == (["node-2", "root", "in"], 5)
    refused = slurmbed("exec", "--node", "node-9", "true")
    assert refused.returncode == 2
    assert "choose from db, login, node-1, node-2" in refused.stderr


def test_status_and_list_are_there_for_programs(slurm_cluster, slurm_submit):
    slurm_submit("--hold", "--job-name=held", "--wrap", "true")
    found = json.loads(slurmbed("status", "--json").stdout)
    assert [node["name"] for node in found["nodes"]] == ["node-1", "node-2"]
    assert [job["name"] for job in found["jobs"]] == ["held"]
    argv = [*SLURMBED, "list", "--json"]
    listed = json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout)
    [this] = [each for each in listed if each["name"] == NAME]
    assert (this["state"], this["nodes"]) == ("running", 2)
    assert this["owner"] == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel without dependencies: PEP 427."""
    files = {
        "loaded.py": "WORD = 'is there'",
        "loaded-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: loaded\nVersion: 1.0\n",
        "loaded-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "loaded-1.0.dist-info/RECORD": "",
    }
    path = tmp_path / "loaded-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_is_loaded_onto_all_nodes(slurm_cluster, wheel):
    loaded = slurmbed("load", str(wheel))
    assert loaded.returncode == 0, loaded.stderr
    said = slurmbed("exec", "--", "srun", "-N2", "python3", "-c", "import loaded; print(loaded.WORD)")
    assert said.stdout.splitlines() == ["is there"] * 2, said.stderr


SECRETS = [  # service, owner, file
    ("slurmctld", "munge", "/keys/munge/munge.key"),
    ("slurmctld", "slurm", "/keys/jwt/jwt_hs256.key"),
    ("login", "root", "/keys/ssh/ssh_host_ed25519_key"),
    ("login", "alice", "/home/alice/.ssh/id_ed25519"),
    ("login", "bob", "/home/bob/.ssh/id_ed25519"),
]


def test_the_exported_logs_tell_of_daemons_jobs_and_slurm_and_hold_no_secret(slurm_cluster, slurm, workspace, tmp_path):
    script = "echo the job said this; echo and this >&2"
    job = slurm.run("--output=runs/%j.log", "--error=/home/alice/%j.log", "--wrap", script)
    done = slurmbed("export-logs", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stderr
    files = {
        str(each.relative_to(tmp_path / "bundle")): each.read_bytes() for each in (tmp_path / "bundle").rglob("*.*")
    }
    assert files[f"jobs/{job.id}-output-{job.id}.log"] == b"the job said this\n"
    assert files[f"jobs/{job.id}-errors-{job.id}.log"] == b"and this\n"
    assert {"db", "login", "node-2"} <= set(yaml.safe_load(files["compose.yaml"])["services"])
    assert b"slurmctld version" in files["daemons/slurmctld.log"]
    assert b"NodeName=node-2" in files["slurm/nodes.txt"]
    assert f"JobId={job.id}".encode() in files["slurm/jobs.txt"]
    assert b"ClusterName=slurmbed" in files["slurm/slurm.conf"]
    for service, owner, path in SECRETS:
        encoded = engine.execute(slurm_cluster, service, ["base64", "--wrap=0", path], user=owner).check().stdout
        secret = base64.b64decode(encoded)
        lines = secret.strip().splitlines()
        for form in (secret.strip(), lines[min(1, len(lines) - 1)], encoded.encode()):
            assert not [name for name, text in files.items() if form in text], path
    assert slurmbed("export-logs", str(tmp_path)).returncode == 2


@pytest.mark.skipif(not shutil.which("ssh"), reason="this machine has no ssh")
def test_the_ssh_configuration_opens_the_login_node(slurm_cluster, tmp_path):
    config = tmp_path / "config"
    env = {**typed_environment(), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    argv = [*SLURMBED, "env", "--name", NAME, "--ssh-config", "--user", "bob"]
    config.write_text(subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout)
    ssh = ["ssh", "-F", str(config), "-o", "BatchMode=yes", NAME, "id -un; squeue --noheader"]
    done = subprocess.run(ssh, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["bob"]), done.stderr
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_text("by sftp\n")
    sftp = ["sftp", "-F", str(config), "-o", "BatchMode=yes", "-b", "-", NAME]
    batch = f"put {sent} /tmp/by-sftp\nget /tmp/by-sftp {back}\nrm /tmp/by-sftp\n"
    done = subprocess.run(sftp, input=batch, capture_output=True, text=True, timeout=60)
    assert (done.returncode, back.read_text()) == (0, "by sftp\n"), done.stderr


def test_clean_of_a_name_that_is_not_there_says_so(slurm_cluster):
    done = slurmbed("clean", "--name", f"{NAME}-misspelled")
    assert done.returncode != 0
    assert f"no such cluster: {NAME}-misspelled" in done.stderr
    assert NAME in done.stderr.partition("there are: ")[2]
