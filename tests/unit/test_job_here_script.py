"""scripts/job-here, with a squeue that answers, or does not."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "job-here"
HERE = socket.gethostname()
ASKED = f"30 squeue --noheader --user=alice --nodelist={HERE} --states=running,suspended,completing"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("echo 17 main wrap alice R", 0, ""),
        ("true", 1, f"Access denied: alice has no job on {HERE}\n"),
        ("exit 1", 1, f"ssh to {HERE} needs a job there, and slurmctld does not answer\n"),
        ("echo 17 main wrap alice R; exit 124", 1, f"ssh to {HERE} needs a job there, and slurmctld does not answer\n"),
    ],
    ids=["job", "no job", "slurmctld is down", "slurmctld hangs"],
)
def test_only_a_job_lets_a_user_in(tmp_path, answer, code, said):
    (tmp_path / "timeout").write_text(f'#!/bin/bash\necho "$@" >{tmp_path}/asked\n{answer}\n')
    (tmp_path / "timeout").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PAM_USER": "alice"}
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, said)
    assert (tmp_path / "asked").read_text().strip() == ASKED
