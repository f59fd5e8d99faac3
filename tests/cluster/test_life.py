"""A cluster's life: a node lost and back, growing and shrinking, stopping and starting."""

import random
from functools import partial
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import make_cluster
from harness.internals import wait_ready
from harness.jobs import wait_until_idle
from harness.names import NAME
from slurmbed import Cluster, NotReady, UsageError
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

SLEEP = ("--output=/dev/null", "--wrap", "sleep 600")


def names(cluster: Cluster) -> list[str]:
    return [node.name for node in cluster.slurm.nodes()]


def test_a_stopped_node_is_not_ready(slurm_cluster, slurm_faults):
    slurm_faults.stop("node-2")
    with pytest.raises(NotReady, match="node-2: Exited"):
        wait_ready(slurm_cluster, 2)


def test_a_node_out_of_service_is_said_at_once_with_its_reason(slurm_cluster):
    slurm_cluster.as_root(["scontrol", "update", "NodeName=node-2", "State=DRAIN", "Reason=bad memory"]).check()
    try:
        with pytest.raises(NotReady, match=r"node-2 \S*DRAIN\S* \(bad memory\)(.|\n)*State=RESUME"):
            wait_ready(slurm_cluster, 2)
    finally:
        slurm_cluster.as_root(["scontrol", "update", "NodeName=node-2", "State=RESUME"]).check()
        wait_ready(slurm_cluster, 2)


def test_nodes_that_are_kept_for_something_count_as_working(slurm_cluster, slurm_submit):
    """By backfill for a job of two nodes, and for maintenance."""
    slurm_submit("--nodelist=node-1", "--exclusive", "--time=10", *SLEEP).wait_for_state("RUNNING")
    waiting = slurm_submit("--nodes=2", "--exclusive", "--time=10", *SLEEP)
    wait_until(partial(node_2_is, slurm_cluster, "PLANNED"), what="backfill keeps node-2", timeout=120)
    wait_ready(slurm_cluster, 2)
    waiting.cancel()
    words = ("ReservationName=service", "Nodes=node-2", "Users=root", "Flags=MAINT", "StartTime=now", "Duration=60")
    slurm_cluster.as_root(["scontrol", "create", "reservation", *words]).check()
    try:
        wait_until(partial(node_2_is, slurm_cluster, "MAINTENANCE"), what="node-2 is in maintenance", timeout=120)
        wait_ready(slurm_cluster, 2)
    finally:
        slurm_cluster.as_root(["scontrol", "delete", "ReservationName=service"]).check()
        wait_until(partial(node_2_is, slurm_cluster, ""), what="node-2 is in service", timeout=120)


def node_2_is(cluster: Cluster, flag: str) -> None:
    """Pending unless node-2 has the flag, or is idle where none is named."""
    node = cluster.slurm.nodes()[1]
    if not (flag in node.flags if flag else node.is_idle):
        raise Pending(f"{node.state} {node.flags}")


def test_a_killed_node_is_seen_down_and_its_job_runs_again(slurm, slurm_submit, slurm_faults):
    job = slurm_submit("--nodelist=node-2", *SLEEP)
    job.wait_for_state("RUNNING")
    slurm_faults.kill("node-2")
    job.wait_for_state("PENDING")
    (lost,) = [node for node in slurm.nodes() if node.name == "node-2"]
    assert lost.state == "DOWN"
    slurm_faults.heal()
    assert job.wait_for_state("RUNNING").nodelist == "node-2"


def test_scale_up_and_down_keeps_running_jobs(slurm_cluster, slurm, slurm_submit, monkeypatch, tmp_path):
    """Although another clone has taken the image's name, and the user has got a new ssh key."""
    started = engine.started_at(slurm_cluster, "node-1")
    node = engine.inspect(slurm_cluster, "node-1")
    image_id, name = node["Image"], node["Config"]["Image"]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "new.pub").write_text("ssh-ed25519 AAAA new\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    job = slurm_submit("--nodelist=node-1", *SLEEP)
    job.wait_for_state("RUNNING")
    engine.docker("tag", engine.inspect(slurm_cluster, "db")["Image"], name)
    make_cluster(NAME, nodes=4).scale()
    assert {engine.inspect(slurm_cluster, f"node-{number}")["Image"] for number in range(1, 5)} == {image_id}
    keys = slurm.runner(["cat", "/home/alice/.ssh/authorized_keys"]).check().stdout
    assert keys.splitlines().count("ssh-ed25519 AAAA new") == 1
    assert names(slurm_cluster) == ["node-1", "node-2", "node-3", "node-4"]
    spread = slurm.runner(["srun", "--nodes=3", "--exclude=node-1", "--label", "hostname"]).check().stdout
    assert sorted(spread.splitlines()) == ["0: node-2", "1: node-3", "2: node-4"]
    make_cluster(NAME, nodes=2).scale()
    assert names(slurm_cluster) == ["node-1", "node-2"]
    assert not {"node-3", "node-4"} & set(engine.states(NAME))
    assert job.state == "RUNNING"
    assert engine.started_at(slurm_cluster, "node-1") == started


def test_without_accounting_jobs_run_and_are_accounted_later(slurm_cluster, slurm, slurm_faults):
    for service in ("slurmdbd", "db"):
        slurm_faults.kill(service)
    slurm_faults.restart("slurmctld")
    wait_until(partial(answers, slurm_cluster), what="slurmctld starts without slurmdbd", timeout=100)
    job = slurm.run("--output=/dev/null", "--wrap", "true")
    for service in ("db", "slurmdbd"):
        slurm_faults.start(service)
    wait_until(partial(accounted, slurm_cluster, job.id), what="accounting has the job", timeout=180)


def answers(cluster: Cluster) -> None:
    shown = cluster.slurm.runner(["scontrol", "ping"]).output
    if "is UP" not in shown:
        raise Pending(shown)


def accounted(cluster: Cluster, job_id: str) -> None:
    shown = cluster.slurm.runner(["sacct", "--allocations", "--noheader", "--format=State", f"--jobs={job_id}"]).output
    if shown.split() != ["COMPLETED"]:
        raise Pending(shown)


# Says if it runs twice at once, saves when it is told to end, and does nothing where it had come to its end. The shell
# hears a signal once its child has ended, and no child has the lock.
AGED = """
exec 9>>aged/$SLURM_JOB_ID.lock
flock --nonblock 9 || echo $SLURM_JOB_ID >>aged/twice
trap 'echo $SLURM_JOB_ID >>aged/saved; exit 0' TERM
[ -e aged/$SLURM_JOB_ID.done ] && exit
for _ in $(seq %d); do sleep 0.1 9>&-; done
touch aged/$SLURM_JOB_ID.done
"""


def test_down_and_up_lose_no_job_and_run_none_twice_at_once(slurm_cluster, slurm_submit, workspace):
    """Twenty jobs, of which some have ended, some run, some begin just then; one asks not to run again."""
    (workspace / "aged").mkdir()
    engine.execute(slurm_cluster, "login", ["chown", "alice:", "/workspace/aged"]).check()
    numbers = random.Random(1)
    quiet = ("--output=/dev/null", "--mem=10M")
    longest = slurm_submit(*quiet, "--wrap", AGED % 9000)
    once = slurm_submit(*quiet, "--no-requeue", "--wrap", "sleep 900")
    for _ in range(19):
        slurm_submit(*quiet, "--wrap", AGED % numbers.randrange(5, 30))
    longest.wait_for_state("RUNNING")
    once.wait_for_state("RUNNING")
    wait_until(partial(so_many_are_done, workspace, 7), what="some of the jobs have ended", timeout=180)
    slurm_cluster.down()
    assert (workspace / "aged" / "saved").read_text().splitlines().count(longest.id) == 1
    make_cluster(NAME).up()
    assert once.state == "CANCELLED"
    longest.wait_for_state("RUNNING")
    longest.cancel()
    wait_until(partial(so_many_are_done, workspace, 19), what="all jobs but the longest have ended", timeout=400)
    assert not (workspace / "aged" / "twice").exists()
    wait_until_idle(slurm_cluster)


def so_many_are_done(workspace: Path, least: int) -> None:
    done = len(list((workspace / "aged").glob("*.done")))
    if done < least:
        raise Pending(f"{done} of {least}")


def test_a_job_does_not_outlive_its_node(slurm, slurm_submit, slurm_faults):
    """Of any age: what slurmctld learns from a node's start it forgets about jobs that have only just begun."""
    job = slurm_submit("--nodelist=node-2", *SLEEP)
    job.wait_for_state("RUNNING")
    slurm_faults.restart("node-2")
    assert slurm.wait(job.id, 90, until=lambda job: job.state != "RUNNING").state == "PENDING"


def test_down_and_up_keep_accounting_jobs_and_homes(slurm_cluster, slurm, slurm_submit):
    job = slurm.run("--output=/dev/null", "--wrap", "echo kept >~/kept")
    held = slurm_submit("--hold", "--output=/dev/null", "--wrap", "true")
    slurm_cluster.down()
    assert set(engine.states(NAME).values()) == {"exited"}
    for service in ("db", "slurmdbd", "slurmctld"):  # whose user is not init's
        said = run(["docker", "logs", "--tail", "20", engine.container(slurm_cluster, service)], timeout=30).check()
        assert "forwarding signal" not in said.output
    again = make_cluster(NAME)
    assert [node.name for node in again.up()] == ["node-1", "node-2"]
    rows = again.slurm.accounting(job.id)
    assert (rows[0].id, rows[0].state) == (job.id, "COMPLETED")
    assert held.state == "PENDING"
    held.cancel()
    assert again.slurm.runner(["cat", "/home/alice/kept"]).check().stdout == "kept\n"
    assert int(slurm_submit("--output=/dev/null", "--wrap", "true").id) > int(held.id)


def test_nodes_that_are_there_are_not_made_anew_with_another_slice(slurm):
    with pytest.raises(UsageError, match="the existing nodes have 2 CPUs and 2048 MiB"):
        make_cluster(NAME, cpus=1).up()
    make_cluster(NAME, cpus=2).up()
    assert [(node.cpus, node.memory) for node in slurm.nodes()] == [(2, 2048)] * 2


def test_a_dead_login_is_brought_back(slurm_faults):
    slurm_faults.kill("login")
    assert [node.name for node in make_cluster(NAME).up()] == ["node-1", "node-2"]
