"""Jobs through sbatch: where their ranks land, who they run as, what accounting says."""

import json

import pytest

from harness.clusters import TEXT
from harness.internals import SACCT, JobAccounting, parse_accounting, parse_ranks
from slurmbed import BatchJob, Job, JobFailed, Slurm, assert_separate_nodes
from slurmbed.wait import Pending, wait_until

QUICK = ("--steps", "12", "--eval-every", "6", "--sample-length", "20", "--layers", "2")


@pytest.mark.smoke
@pytest.mark.newest
def test_ready_means_idle_nodes_a_job_as_the_user_and_its_accounting(slurm):
    nodes = slurm.nodes()
    assert [(node.name, node.cpus, node.memory) for node in nodes] == [("node-1", 2, 2048), ("node-2", 2, 2048)]
    since = "--starttime=now-1days"  # by itself sacct shows the jobs of today, and midnight may have been just now
    first = parse_accounting(slurm.runner([*SACCT, "--name=ready", since]).check().stdout)[0]
    assert (first.user, first.state, first.nodes) == ("alice", "COMPLETED", 2)


@pytest.mark.smoke
def test_tensor_parallel_ranks_land_on_separate_nodes(slurm, slurm_submit, workspace):
    """As slurmctld lays them out while they run, as accounting says afterwards, and as the ranks say themselves."""
    job = slurm_submit("jobs/tp.sbatch", "--text", TEXT, *QUICK)
    layouts = []

    def laid_out(_: Job) -> bool:
        layouts.append(slurm.layout(job.id))
        return bool(layouts[-1])

    slurm.wait(job.id, 60, until=laid_out)
    job.wait()
    assert layouts[-1] == {0: "node-1", 1: "node-2"}
    assert assert_separate_nodes(job) == layouts[-1]
    ranks = parse_ranks(job.stdout)
    assert {rank.rank: rank.host for rank in ranks} == layouts[-1]
    assert [rank.shard.split(" of")[0] for rank in ranks] == ["heads 0-1", "heads 2-3"]

    folder = workspace / "runs" / job.id
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["val_loss"] for line in metrics if line["val_loss"] is not None]
    assert losses[-1] < losses[0]
    assert (folder / "summary.json").stat().st_uid == workspace.stat().st_uid != 0


def test_a_job_that_asks_for_one_node_lands_on_one(slurm):
    announce = "from ranks import environment; environment.announce(environment.read().record(''))"
    job = slurm.run(
        "--nodes=1",
        "--ntasks-per-node=2",
        "--wrap",
        f'MASTER_ADDR=localhost MASTER_PORT=20000 srun python3 -c "{announce}"',
    )
    assert len(parse_ranks(job.stdout)) == len(job.placement) == 2
    with pytest.raises(AssertionError, match=r"ranks share node-[12]: rank 0 on node-[12], rank 1 on node-[12]"):
        assert_separate_nodes(job)


@pytest.mark.smoke
@pytest.mark.newest
def test_ranks_follow_the_numbers_of_the_nodes(slurm):
    job = slurm.run("--nodes=2", "--wrap", "srun --label hostname")
    assert sorted(job.stdout.splitlines()) == ["0: node-1", "1: node-2"]


def test_ranks_have_the_job_scripts_variables_when_a_site_exports_none(slurm):
    job = slurm.run("--export=NONE", "jobs/lesson.sbatch", "meet")
    assert "rank 1 wrote: I am on node-2" in job.stdout


def test_a_training_runs_when_a_site_exports_none(slurm, workspace):
    flags = ("--text", TEXT, "--steps=2", "--layers=1", "--sample-length=0")
    job = slurm.run("--export=NONE", "jobs/ddp.sbatch", *flags)
    assert [rank.host for rank in parse_ranks(job.stdout)] == ["node-1", "node-2"]
    assert json.loads((workspace / "runs" / job.id / "summary.json").read_text())["steps"] == 2


def test_a_failing_job_is_told_with_its_exit_code_and_log(slurm):
    with pytest.raises(JobFailed, match=r"ended FAILED, exit code 3:0(.|\n)*on fire"):
        slurm.run("--wrap", "echo on fire; exit 3")


@pytest.mark.smoke
@pytest.mark.newest
def test_accounting_has_the_failure(slurm, slurm_submit):
    job = slurm_submit("--output=/dev/null", "--wrap", "exit 4")
    job.wait_until_over()

    def accounted() -> JobAccounting:
        runs = slurm.accounting(job.id)
        if not runs or not runs[0].is_over:
            raise Pending(str(runs))
        return runs[0]

    run = wait_until(accounted, what="sacct has the end of the job", timeout=30)
    assert (run.user, run.state, run.exit_code) == ("alice", "FAILED", "4:0")


@pytest.mark.newest
def test_two_users_have_their_own_jobs_and_files(slurm_cluster, slurm):
    shared, private = "/workspace/from-alice", "/home/alice/private"
    script = f"id -un; id -u; touch ~/mine; cat {shared}; cat {private} || srun echo denied"
    slurm_cluster.as_user("alice")(["sh", "-c", f"umask 022; echo hello >{shared}; echo hello >{private}"]).check()
    bob = Slurm(slurm_cluster.as_user("bob"))
    job = bob.run("--output=/home/bob/%j.log", "--wrap", script)
    name, uid, greeting, *refused = job.stdout.split()
    assert (name, greeting, refused[-3:]) == ("bob", "hello", ["Permission", "denied", "denied"])
    assert slurm_cluster.as_user("bob")(["stat", "--format=%u", "/home/bob/mine"]).check().stdout.strip() == uid
    assert slurm.accounting(job.id)[0].user == "bob"


@pytest.mark.newest
def test_a_user_may_not_cancel_anothers_job(slurm_cluster, slurm_submit):
    job = slurm_submit("--hold", "--wrap", "true")
    refused = slurm_cluster.as_user("bob")(["scancel", job.id])
    assert "Access/permission denied" in refused.output
    assert job.state == "PENDING"
    job.cancel()
    assert job.wait_until_over().state == "CANCELLED"


@pytest.mark.newest
def test_a_request_that_no_node_can_meet_is_refused_at_once(slurm_cluster, slurm):
    """Or, by Slurm 26.05, queued until there are as many nodes, with a reason that names the partition."""
    refused = slurm.runner(["sbatch", "--nodes=3", "--wrap", "true"])
    if slurm_cluster.choices().slurm == "26.05":
        job = BatchJob(slurm, refused.stdout.split()[-1])
        slurm.wait(job.id, 60, until=lambda job: job.state == "PENDING" and "Partition" in job.reason)
        job.cancel()
        return
    assert "Node count specification invalid" in refused.output or "not available" in refused.output
