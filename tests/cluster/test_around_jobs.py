"""What Slurm runs around jobs: nothing of a job outlives it, nothing else is touched."""

import pytest

from harness import engine
from harness.jobs import until
from slurmbed.wait import Pending, wait_until

# A program that a job starts and forgets, deaf to what a shell's end sends it; each test's has a number of its own.
DETACHED = "setsid --fork nohup sleep {} </dev/null >/dev/null 2>&1"
# As a daemon that nothing but SIGKILL ends.
DEAF = "setsid --fork bash -c 'trap \"\" TERM HUP; exec -a deaf-{} sleep 600' </dev/null >/dev/null 2>&1"


def running(cluster, pattern: str) -> bool:
    return engine.execute(cluster, "node-1", ["pgrep", "--full", "--exact", pattern]).ok


def wait_for(cluster, pattern: str) -> None:
    def check() -> None:
        if not running(cluster, pattern):
            raise Pending("not yet")

    wait_until(check, what=f"node-1 runs {pattern}", timeout=60)


def test_what_a_job_leaves_is_ended_before_the_next_one_starts(cluster, run_job):
    script = "; ".join((DETACHED.format(98761), DEAF.format(98762), "pgrep --full 'sleep 98761|deaf-98762'"))
    _, log = run_job("--nodelist=node-1", "--exclusive", "--wrap", script)
    assert len(log.split()) >= 2
    _, log = run_job("--nodelist=node-1", "--exclusive", "--wrap", "ps -o args= -u alice")
    assert "sleep 98761" not in log
    assert "deaf-98762" not in log
    assert not running(cluster, "(sleep 98761|deaf-98762.*)")


def test_another_job_of_the_same_user_keeps_what_it_has_started(cluster, submit, run_job):
    """A job that it asks for less memory than the node has, so that both fit."""
    other = submit(cluster, "--nodelist=node-1", "--mem=100", script=f"{DETACHED.format(98763)}; sleep 600")
    until(cluster, other, "RUNNING")
    wait_for(cluster, "sleep 98763")
    job, _ = run_job("--nodelist=node-1", "--mem=100", "--wrap", DETACHED.format(98764))
    cluster.slurm.wait(job.id, 60)
    assert running(cluster, "sleep 98763")
    assert cluster.slurm.job(other).state == "RUNNING"
    cluster.slurm.cancel(other)
    cluster.slurm.wait(other, 60)
    assert not running(cluster, "sleep 9876[34]")


@pytest.mark.smoke
def test_another_user_and_daemons_are_spared(cluster, run_job):
    engine.execute(cluster, "node-1", ["sh", "-c", DETACHED.format(98765)], user="bob").check()
    try:
        run_job("--nodelist=node-1", "--exclusive", "--wrap", "true")
        assert running(cluster, "sleep 98765")
        assert all(running(cluster, daemon) for daemon in (".*munged .*", ".*slurmd .*", ".*sshd.*"))
    finally:
        engine.execute(cluster, "node-1", ["pkill", "--full", "--exact", "sleep 98765"])
