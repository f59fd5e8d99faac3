"""Jobs of alice's, their logs, and waiting for what they do."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import engine
from harness.internals import DEFAULT_VERSION
from slurmbed.errors import WaitTimeout
from slurmbed.wait import Pending, wait_until

BETWEEN_QUESTIONS = 5  # seconds
SUM = ("launchers/distributed_sum.py",)
ON = ("--seconds", "600")  # for SUM: go on, until the test ends the job
# The smallest model that every strategy and launcher can train.
TINY = ("--layers=1", "--channels=32", "--heads=4", "--block-size=16", "--sample-length=20")


def summary(workspace: Path, job_id: str) -> dict:
    """What a training wrote of itself at its end."""
    return json.loads((workspace / "runs" / job_id / "summary.json").read_text())


def wait_for_file(cluster, job_id: str, holds: Callable[[], bool], told: Callable[[], str], timeout: float) -> None:
    """Block until ``holds()``, of files that a job writes; an assertion fails if it ends without that.

    Slurm is asked now and then: a `docker exec` costs as much CPU as reading a file a thousand times.

    Args:
        told: what the job has written so far, for the error.
    """
    asked = time.monotonic()

    def check() -> None:
        nonlocal asked
        if holds():
            return
        if time.monotonic() > asked + BETWEEN_QUESTIONS:
            job = cluster.slurm.job(job_id)
            assert not job.is_over or holds(), f"job {job_id} ended {job.state} before\n{told()}"
            asked = time.monotonic()
        raise Pending("not yet")

    try:
        wait_until(check, what=f"what job {job_id} writes", timeout=timeout)
    except WaitTimeout as late:
        raise AssertionError(f"{late}\n{cluster.slurm.job(job_id)}\n{told()}") from None


def require_pmix(cluster) -> None:
    """Skip a test where Debian packages Slurm without PMIx, as 26.05; the default version has it."""
    if cluster.choices().slurm != DEFAULT_VERSION and "pmix" not in cluster.slurm.runner(["srun", "--mpi=list"]).output:
        pytest.skip("Debian's package of this Slurm has no PMIx plugin")


def srun_by_rank(cluster, script: str, *words: str) -> list[str]:
    """What the tasks of ``srun WORDS... sh -c SCRIPT`` printed, a line each, by rank.

    A job that has just ended holds its CPUs and GPUs until its epilog has run: none does so when this starts.
    """

    def check() -> None:
        if ending := [node.name for node in cluster.slurm.nodes() if "COMPLETING" in node.flags]:
            raise Pending(", ".join(ending))

    wait_until(check, what="no job is ending", timeout=120)
    ran = cluster.slurm.runner(["srun", "--label", *words, "sh", "-c", script]).check().stdout
    lines = sorted(ran.splitlines(), key=lambda line: int(line.partition(":")[0]))
    return [line.partition(":")[2].strip() for line in lines]


def refusal(cluster, *words: str, user: str = "alice") -> str:
    """Why Slurm refuses ``srun WORDS... true``."""
    ran = cluster.as_user(user)(["srun", "--immediate=5", *words, "true"])
    assert not ran.ok
    return ran.stderr


def record(log: str, kind: str) -> dict:
    """The one JSON line of a log that says it is such a record."""
    [line] = [line for line in log.splitlines() if line.startswith(f'{{"record": "{kind}"')]
    return json.loads(line)


def left_on(cluster, nodes: int) -> list[str]:
    """What the first nodes run for alice, and what of Ray's is in their /tmp: a line each."""
    look = ["bash", "-c", "ps -o args= -u alice; find /tmp -maxdepth 1 -name 'ray*'"]
    found = [engine.execute(cluster, f"node-{number}", look).check().stdout for number in range(1, nodes + 1)]
    return [line for text in found for line in text.splitlines()]


def wait_until_idle(cluster, timeout: float = 120) -> None:
    """Block until no node has a job."""

    def check() -> None:
        if busy := [f"{node.name} {node.state}" for node in cluster.slurm.nodes() if not node.is_idle]:
            raise Pending(", ".join(busy))

    wait_until(check, what=f"{cluster.name} is idle", timeout=timeout)


def find_process(cluster, words: str, *options: str) -> None:
    """Pending while alice has no process with this command line on node-1. options: of pgrep."""
    if not engine.execute(cluster, "node-1", ["pgrep", *options, "-u", "alice", "-f", f"^[^ ]*{words}$"]).ok:
        raise Pending("not yet")
