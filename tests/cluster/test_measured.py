"""What Slurm measures of jobs, holds them to, and reckons with."""

import re

import pytest

from harness import jobs
from harness.internals import parse_table
from harness.jobs import refusal
from slurmbed.wait import Pending, wait_until

# It sleeps to hold the memory: the job is ended, or its test ends it.
HOG = "x = b'x' * ({} << 20); print('has it', flush=True); import time; time.sleep({})"


def mebibytes(text: str) -> float:
    """Of sacct's and sstat's 307200K; 0 for nothing."""
    return float(text.rstrip("K") or 0) / 1024


def shown(cluster, *words: str) -> list[dict[str, str]]:
    return parse_table(cluster.slurm.runner([words[0], "--parsable2", *words[1:]]).check().stdout)


@pytest.mark.smoke
def test_a_job_is_measured_while_it_runs_and_afterwards(slurm_cluster, slurm, slurm_submit):
    job = slurm_submit("--mem=900", "--wrap", f'python3 -c "{HOG.format(300, 600)}"')
    job.wait_for_state("RUNNING")

    def measured() -> None:
        found = shown(slurm_cluster, "sstat", f"--jobs={job.id}.batch", "--format=JobID,MaxRSS,AveCPU")
        if not found or mebibytes(found[0]["MaxRSS"]) < 300:
            raise Pending(str(found))

    wait_until(measured, what="sstat shows 300 MiB", timeout=90)
    job.cancel()
    job.wait_until_over()

    def accounted() -> None:
        found = shown(slurm_cluster, "sacct", f"--jobs={job.id}.batch", "--format=MaxRSS,AveCPU")
        if not found or not 300 <= mebibytes(found[0]["MaxRSS"]) < 400:
            raise Pending(str(found))

    wait_until(accounted, what="sacct shows 300 MiB", timeout=60)
    told = slurm.runner(["seff", job.id]).check().stdout
    assert f"Job ID: {job.id}\nCluster: slurmbed\nUser/Group: alice/alice\nState: CANCELLED" in told
    assert re.search(r"^Memory Utilized: 3\d\d\.\d\d MB\nMemory Efficiency: 3\d\.\d\d% of 900.00 MB", told, re.M)
    assert re.search(r"^CPU Efficiency: \d+\.\d\d% of 00:\d\d:\d\d core-walltime$", told, re.M)


def test_a_file_of_each_node_comes_back(slurm, workspace):
    script = """
        srun sh -c 'echo "of  $SLURMD_NODENAME" >"/tmp/of me"'
        sgather "/tmp/of me" runs/gathered
        ! srun --quiet ls "/tmp/of me"
    """
    slurm.run("--nodes=2", "--ntasks-per-node=1", "--wrap", script)
    assert [(workspace / f"runs/gathered.node-{i}").read_text() for i in (1, 2)] == ["of  node-1\n", "of  node-2\n"]


@pytest.mark.parametrize("start", ["", "srun "], ids=["batch", "step"])
def test_a_job_over_its_memory_is_ended_and_says_so(slurm_submit, start):
    script = f'{start}python3 -c "{HOG.format(600, 600)}"'
    job = slurm_submit("--mem=200M", "--wrap", script)
    assert job.wait_until_over().state not in ("COMPLETED", "TIMEOUT")

    def says_so() -> None:
        if "exceeded memory limit" not in (log := job.stdout):
            raise Pending(log)

    wait_until(says_so, what="the log says why", timeout=30)


def share(cluster) -> list[str]:
    words = cluster.slurm.runner(["scontrol", "show", "partition", "main"]).check().stdout.split()
    return [word for word in words if word.startswith(("DefMemPerCPU=", "MaxTime=", "DefaultTime="))]


def test_a_job_gets_the_memory_of_its_cpus_and_a_finite_time(slurm_cluster, slurm, slurm_faults):
    """Also from a slurmctld that was restarted."""
    wanted = ["DefaultTime=01:00:00", "MaxTime=7-00:00:00", "DefMemPerCPU=1024"]
    assert share(slurm_cluster) == wanted
    slurm_faults.restart("slurmctld")

    def again() -> None:
        answer = slurm.runner(["scontrol", "show", "partition", "main"])
        if not answer.ok or "DefMemPerCPU=1024" not in answer.stdout:
            raise Pending(answer.output)

    wait_until(again, what="slurmctld knows the share again", timeout=120)
    jobs.wait_until_idle(slurm_cluster)


@pytest.mark.smoke
@pytest.mark.newest
def test_accounts_and_qos_that_are_not_there_are_refused(slurm_cluster):
    assert "Invalid account" in refusal(slurm_cluster, "--account=nosuch")
    assert "Invalid qos" in refusal(slurm_cluster, "--qos=nosuch")


@pytest.mark.newest
def test_priorities_come_of_age_usage_size_partition_and_qos(slurm_cluster, slurm):
    weights = slurm.runner(["sprio", "--weights", "--noheader", "--format=%a %f %j %p %q"]).check().stdout
    assert weights.split() == ["1000", "10000", "100", "1000", "10000"]
    users = {row["User"].strip(): row for row in shown(slurm_cluster, "sshare", "--all", "--accounts=class")}
    assert all(0 <= float(users[user]["FairShare"]) <= 1 for user in ("alice", "bob"))


def test_a_requeued_job_is_held_back_for_seconds(slurm, slurm_submit):
    """For as long as a launch of its first run may be under way."""
    job = slurm_submit("--wrap", "sleep 600")
    job.wait_for_state("RUNNING")
    slurm.runner(["scontrol", "requeue", job.id]).check()
    job.wait_for_state("PENDING", "BeginTime")
    left = "date --date=$(squeue --noheader --format=%S --jobs=$1) +%s; date +%s"
    start, now = slurm.runner(["sh", "-c", left, "sh", job.id]).check().stdout.split()
    assert int(start) - int(now) <= 25
