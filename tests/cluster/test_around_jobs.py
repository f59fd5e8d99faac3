"""What Slurm does around jobs: it ends what they leave, and nothing else; mail, logs, jobs at given times."""

import re

import pytest

from harness import engine
from slurmbed.process import last_lines
from slurmbed.wait import Pending, wait_until

# A program that a job starts and forgets, deaf to what a shell's end sends it; each test's has a number of its own.
DETACHED = "setsid --fork nohup sleep {} </dev/null >/dev/null 2>&1"
# As a daemon that nothing but SIGKILL ends.
DEAF = "setsid --fork bash -c 'trap \"\" TERM HUP; exec -a deaf-{} sleep 600' </dev/null >/dev/null 2>&1"


@pytest.fixture(scope="module", autouse=True)
def crontab(slurm_cluster):
    """Set before the other tests, so that the minute has begun when the last one waits for it. They are on node-1."""
    words = ("scrontab", "-")
    text = "#SCRON --nodelist=node-2\n#SCRON --output=/dev/null\n* * * * * echo $SLURM_JOB_ID >~/at-each-minute\n"
    engine.execute(slurm_cluster, "login", words, user="alice", stdin=text).check()
    yield
    slurm_cluster.slurm.runner(["scrontab", "-r"]).check()


def running(cluster, pattern: str) -> bool:
    return engine.execute(cluster, "node-1", ["pgrep", "--full", "--exact", pattern]).ok


def wait_for(cluster, pattern: str) -> None:
    def check() -> None:
        if not running(cluster, pattern):
            raise Pending("not yet")

    wait_until(check, what=f"node-1 runs {pattern}", timeout=60)


def test_what_a_job_leaves_is_ended_before_the_next_one_starts(slurm_cluster, slurm):
    script = "; ".join((DETACHED.format(98761), DEAF.format(98762), "pgrep --full 'sleep 98761|deaf-98762'"))
    job = slurm.run("--nodelist=node-1", "--exclusive", "--wrap", script)
    assert len(job.stdout.split()) >= 2
    log = slurm.run("--nodelist=node-1", "--exclusive", "--wrap", "ps -o args= -u alice").stdout
    assert "sleep 98761" not in log
    assert "deaf-98762" not in log
    assert not running(slurm_cluster, "(sleep 98761|deaf-98762.*)")


def test_another_job_of_the_same_user_keeps_what_it_has_started(slurm_cluster, slurm, slurm_submit):
    """A job that it asks for less memory than the node has, so that both fit."""
    other = slurm_submit("--nodelist=node-1", "--mem=100", "--wrap", f"{DETACHED.format(98763)}; sleep 600")
    other.wait_for_state("RUNNING")
    wait_for(slurm_cluster, "sleep 98763")
    slurm.run("--nodelist=node-1", "--mem=100", "--wrap", DETACHED.format(98764))
    assert running(slurm_cluster, "sleep 98763")
    assert other.state == "RUNNING"
    other.cancel()
    other.wait_until_over()
    assert not running(slurm_cluster, "sleep 9876[34]")


@pytest.mark.smoke
@pytest.mark.newest
def test_another_user_and_daemons_are_spared(slurm_cluster, slurm):
    engine.execute(slurm_cluster, "node-1", ["sh", "-c", DETACHED.format(98765)], user="bob").check()
    try:
        slurm.run("--nodelist=node-1", "--exclusive", "--wrap", "true")
        assert running(slurm_cluster, "sleep 98765")
        assert all(running(slurm_cluster, daemon) for daemon in (".*munged .*", ".*slurmd .*", ".*sshd.*"))
    finally:
        engine.execute(slurm_cluster, "node-1", ["pkill", "--full", "--exact", "sleep 98765"])


def test_mail_goes_to_a_file_in_the_users_home(slurm_cluster, slurm):
    job = slurm.run("--mail-type=END", "--mail-user=alice@example.org", "--wrap", "true")

    def mail_came() -> None:
        mail = slurm.runner(["sh", "-c", "cat ~/mail"]).check().stdout
        if not re.search(
            rf"^To: alice@example.org\nSubject: Slurm Job_id={job.id} Name=wrap Ended", mail, re.MULTILINE
        ):
            raise Pending(mail)

    wait_until(mail_came, what="mail", timeout=60)
    assert "Permission denied" in slurm_cluster.as_user("bob")(["cat", "/var/mail/alice"]).stderr


def test_logs_have_what_slurmstepd_says_and_nothing_twice(slurm_cluster, slurm):
    slurm.runner(["srun", "--nodelist=node-1", "no-such-program"])

    def logged() -> str:
        text = engine.logs(slurm_cluster, "node-1", engine.started_at(slurm_cluster, "node-1"))
        if "error: execve(): no-such-program" not in text:
            raise Pending(last_lines(text))
        return text

    text = wait_until(logged, what="the log of slurmstepd", timeout=60)
    assert len(re.findall("slurmd version .* started", text)) == 1
    assert "hwloc" not in text


def test_scrontab_runs_jobs_at_given_times(slurm):
    def ran() -> str:
        job_id = slurm.runner(["sh", "-c", "cat ~/at-each-minute"]).stdout.strip()
        if not job_id:
            raise Pending("not yet")
        return job_id

    job_id = wait_until(ran, what="the job of the next minute", timeout=180)
    shown = slurm.runner(["scontrol", "show", "job", job_id]).check().stdout
    assert "CronJob=Yes" in shown
    slurm.runner(["sh", "-c", "command -v ${EDITOR:-vi}"]).check()
