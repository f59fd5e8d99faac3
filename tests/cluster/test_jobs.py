"""Jobs through sbatch: where their ranks land, who they run as, what accounting says."""

import json

import pytest

from harness import jobs
from harness.clusters import TEXT
from harness.internals import (
    SACCT,
    Job,
    JobAccounting,
    Slurm,
    parse_accounting,
    parse_ranks,
    placement,
    require_separate_nodes,
)
from slurmbed.errors import JobFailed, PlacementError
from slurmbed.wait import Pending, wait_until

QUICK = ("--steps", "12", "--eval-every", "6", "--sample-length", "20", "--layers", "2")


@pytest.mark.smoke
@pytest.mark.newest
def test_ready_means_idle_nodes_a_job_as_the_user_and_its_accounting(cluster):
    nodes = cluster.slurm.nodes()
    assert [(node.name, node.cpus, node.memory) for node in nodes] == [("node-1", 2, 2048), ("node-2", 2, 2048)]
    first = parse_accounting(cluster.slurm.runner([*SACCT, "--name=ready"]).check().stdout)[0]
    assert (first.user, first.state, first.nodes) == ("alice", "COMPLETED", 2)


@pytest.mark.smoke
def test_tensor_parallel_ranks_land_on_separate_nodes(cluster, workspace):
    """As slurmctld lays them out while they run, as accounting says afterwards, and as the ranks say themselves."""
    job_id = cluster.slurm.submit("jobs/tp.sbatch", "--text", TEXT, *QUICK)
    layouts = []

    def laid_out(job: Job) -> bool:
        layouts.append(cluster.slurm.layout(job_id))
        return bool(layouts[-1])

    cluster.slurm.wait(job_id, 60, until=laid_out)
    log = jobs.log_of(workspace, job_id)
    cluster.slurm.wait_completed(job_id, 180, log=log.read_text)
    layout = layouts[-1]
    assert layout == {0: "node-1", 1: "node-2"}
    placed = placement(parse_ranks(log.read_text()), layout, job_id)
    require_separate_nodes(placed)
    assert cluster.slurm.accounted_layout(job_id) == layout
    assert [item.rank.shard.split(" of")[0] for item in placed] == ["heads 0-1", "heads 2-3"]

    folder = workspace / "runs" / job_id
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["val_loss"] for line in metrics if line["val_loss"] is not None]
    assert losses[-1] < losses[0]
    assert (folder / "summary.json").stat().st_uid == workspace.stat().st_uid != 0


def test_a_job_that_asks_for_one_node_lands_on_one(cluster, run_job):
    announce = "from ranks import environment; environment.announce(environment.read().record(''))"
    job, log = run_job(
        "--nodes=1",
        "--ntasks-per-node=2",
        "--wrap",
        f'MASTER_ADDR=localhost MASTER_PORT=20000 srun python3 -c "{announce}"',
    )
    placed = placement(parse_ranks(log), cluster.slurm.accounted_layout(job.id), job.id)
    assert len(placed) == 2
    assert len({item.slurm_node for item in placed}) == 1
    with pytest.raises(PlacementError, match="ranks share a node"):
        require_separate_nodes(placed)


@pytest.mark.smoke
@pytest.mark.newest
def test_ranks_follow_the_numbers_of_the_nodes(run_job):
    _, log = run_job("--nodes=2", "--wrap", "srun --label hostname")
    assert sorted(log.splitlines()) == ["0: node-1", "1: node-2"]


def test_ranks_have_the_job_scripts_variables_when_a_site_exports_none(run_job):
    _, log = run_job("--export=NONE", "jobs/lesson.sbatch", "meet")
    assert "rank 1 wrote: I am on node-2" in log


def test_a_failing_job_is_told_with_its_exit_code_and_log(run_job):
    with pytest.raises(JobFailed, match=r"ended FAILED, exit code 3:0(.|\n)*on fire"):
        run_job("--wrap", "echo on fire; exit 3")


@pytest.mark.smoke
@pytest.mark.newest
def test_accounting_has_the_failure(cluster):
    job_id = cluster.slurm.submit("--output=/dev/null", "--wrap", "exit 4")
    cluster.slurm.wait(job_id, 60)

    def accounted() -> JobAccounting:
        runs = cluster.slurm.accounting(job_id)
        if not runs or not runs[0].is_over:
            raise Pending(str(runs))
        return runs[0]

    run = wait_until(accounted, what="sacct has the end of the job", timeout=30)
    assert (run.user, run.state, run.exit_code) == ("alice", "FAILED", "4:0")


@pytest.mark.newest
def test_two_users_have_their_own_jobs_and_files(cluster):
    shared, private = "/workspace/from-alice", "/home/alice/private"
    script = f"id -un; id -u; touch ~/mine; cat {shared}; cat {private} || srun echo denied"
    cluster.as_user("alice")(["sh", "-c", f"umask 022; echo hello >{shared}; echo hello >{private}"]).check()
    bob = Slurm(cluster.as_user("bob"))
    job_id = bob.submit("--output=/home/bob/%j.log", "--wrap", script)
    bob.wait_completed(job_id, 60)
    name, uid, greeting, *refused = cluster.as_user("bob")(["cat", f"/home/bob/{job_id}.log"]).check().stdout.split()
    assert (name, greeting, refused[-3:]) == ("bob", "hello", ["Permission", "denied", "denied"])
    assert cluster.as_user("bob")(["stat", "--format=%u", "/home/bob/mine"]).check().stdout.strip() == uid
    assert cluster.slurm.accounting(job_id)[0].user == "bob"


@pytest.mark.newest
def test_a_user_may_not_cancel_anothers_job(cluster):
    job_id = cluster.slurm.submit("--hold", "--wrap", "true")
    try:
        refused = cluster.as_user("bob")(["scancel", job_id])
        assert "Access/permission denied" in refused.output
        assert cluster.slurm.job(job_id).state == "PENDING"
    finally:
        cluster.slurm.cancel(job_id)
    assert cluster.slurm.wait(job_id, 30).state == "CANCELLED"


@pytest.mark.newest
def test_a_request_that_no_node_can_meet_is_refused_at_once(cluster):
    """Or, by Slurm 26.05, queued until there are as many nodes, with a reason that names the partition."""
    refused = cluster.slurm.runner(["sbatch", "--nodes=3", "--wrap", "true"])
    if cluster.choices().slurm == "26.05":
        job_id = refused.stdout.split()[-1]
        cluster.slurm.wait(job_id, 60, until=lambda job: job.state == "PENDING" and "Partition" in job.reason)
        cluster.slurm.cancel(job_id)
        return
    assert "Node count specification invalid" in refused.output or "not available" in refused.output
