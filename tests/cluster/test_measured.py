"""What Slurm measures of jobs, holds them to, and reckons with."""

import re

import pytest

from harness import engine, jobs
from harness.internals import parse_table
from harness.jobs import log_of, refusal, until
from slurmbed.wait import Pending, wait_until

# It sleeps to hold the memory: the job is ended, or its test ends it.
HOG = "x = b'x' * ({} << 20); print('has it', flush=True); import time; time.sleep({})"


def mebibytes(text: str) -> float:
    """Of sacct's and sstat's 307200K; 0 for nothing."""
    return float(text.rstrip("K") or 0) / 1024


def shown(cluster, *words: str) -> list[dict[str, str]]:
    return parse_table(cluster.slurm.runner([words[0], "--parsable2", *words[1:]]).check().stdout)


@pytest.mark.smoke
def test_a_job_is_measured_while_it_runs_and_afterwards(cluster, workspace, submit):
    job_id = submit(cluster, "--mem=900", "--output=runs/%j.log", script=f'python3 -c "{HOG.format(300, 600)}"')
    until(cluster, job_id, "RUNNING")

    def measured() -> None:
        found = shown(cluster, "sstat", f"--jobs={job_id}.batch", "--format=JobID,MaxRSS,AveCPU")
        if not found or mebibytes(found[0]["MaxRSS"]) < 300:
            raise Pending(str(found))

    wait_until(measured, what="sstat shows 300 MiB", timeout=90)
    cluster.slurm.cancel(job_id)
    cluster.slurm.wait(job_id, 60)

    def accounted() -> None:
        found = shown(cluster, "sacct", f"--jobs={job_id}.batch", "--format=MaxRSS,AveCPU")
        if not found or not 300 <= mebibytes(found[0]["MaxRSS"]) < 400:
            raise Pending(str(found))

    wait_until(accounted, what="sacct shows 300 MiB", timeout=60)
    told = cluster.slurm.runner(["seff", job_id]).check().stdout
    assert f"Job ID: {job_id}\nCluster: slurmbed\nUser/Group: alice/alice\nState: CANCELLED" in told
    assert re.search(r"^Memory Utilized: 3\d\d\.\d\d MB\nMemory Efficiency: 3\d\.\d\d% of 900.00 MB", told, re.M)
    assert re.search(r"^CPU Efficiency: \d+\.\d\d% of 00:\d\d:\d\d core-walltime$", told, re.M)


def test_a_file_of_each_node_comes_back(cluster, workspace, run_job):
    script = """
        srun sh -c 'echo "of  $SLURMD_NODENAME" >"/tmp/of me"'
        sgather "/tmp/of me" runs/gathered
        ! srun --quiet ls "/tmp/of me"
    """
    run_job("--nodes=2", "--ntasks-per-node=1", "--wrap", script)
    assert [(workspace / f"runs/gathered.node-{i}").read_text() for i in (1, 2)] == ["of  node-1\n", "of  node-2\n"]


@pytest.mark.parametrize("start", ["", "srun "], ids=["batch", "step"])
def test_a_job_over_its_memory_is_ended_and_says_so(cluster, workspace, submit, start):
    script = f'{start}python3 -c "{HOG.format(600, 600)}"'
    job_id = submit(cluster, "--mem=200M", "--output=runs/%j.log", script=script)
    assert cluster.slurm.wait(job_id, 120).state not in ("COMPLETED", "TIMEOUT")
    log = log_of(workspace, job_id)

    def says_so() -> None:
        if "exceeded memory limit" not in log.read_text():
            raise Pending(log.read_text())

    wait_until(says_so, what="the log says why", timeout=30)


def share(cluster) -> list[str]:
    words = cluster.slurm.runner(["scontrol", "show", "partition", "main"]).check().stdout.split()
    return [word for word in words if word.startswith(("DefMemPerCPU=", "MaxTime=", "DefaultTime="))]


def test_a_job_gets_the_memory_of_its_cpus_and_a_finite_time(cluster):
    """Also from a slurmctld that was restarted."""
    wanted = ["DefaultTime=01:00:00", "MaxTime=7-00:00:00", "DefMemPerCPU=1024"]
    assert share(cluster) == wanted
    engine.restart(cluster, "slurmctld")

    def again() -> None:
        answer = cluster.slurm.runner(["scontrol", "show", "partition", "main"])
        if not answer.ok or "DefMemPerCPU=1024" not in answer.stdout:
            raise Pending(answer.output)

    wait_until(again, what="slurmctld knows the share again", timeout=120)
    jobs.wait_until_idle(cluster)


@pytest.mark.smoke
@pytest.mark.newest
def test_accounts_and_qos_that_are_not_there_are_refused(cluster):
    assert "Invalid account" in refusal(cluster, "--account=nosuch")
    assert "Invalid qos" in refusal(cluster, "--qos=nosuch")


@pytest.mark.newest
def test_priorities_come_of_age_usage_size_partition_and_qos(cluster):
    weights = cluster.slurm.runner(["sprio", "--weights", "--noheader", "--format=%a %f %j %p %q"]).check().stdout
    assert weights.split() == ["1000", "10000", "100", "1000", "10000"]
    users = {row["User"].strip(): row for row in shown(cluster, "sshare", "--all", "--accounts=class")}
    assert all(0 <= float(users[user]["FairShare"]) <= 1 for user in ("alice", "bob"))


def test_a_requeued_job_is_held_back_for_seconds(cluster, submit):
    """For as long as a launch of its first run may be under way."""
    job_id = submit(cluster)
    until(cluster, job_id, "RUNNING")
    cluster.slurm.runner(["scontrol", "requeue", job_id]).check()
    until(cluster, job_id, "PENDING", "BeginTime")
    left = "date --date=$(squeue --noheader --format=%S --jobs=$1) +%s; date +%s"
    start, now = cluster.slurm.runner(["sh", "-c", left, "sh", job_id]).check().stdout.split()
    assert int(start) - int(now) <= 25
