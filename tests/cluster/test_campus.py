"""A campus in small, from a file: partitions, QOS, accounts, limits, preemption, a mount."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import copy_of_workspace, make_cluster
from harness.internals import ROOT, parse_table
from harness.jobs import refusal, srun_by_rank, wait_until_idle
from harness.lessons import ON_CAMPUS, keeps_its_promises, page
from slurmbed import BatchJob, Cluster, UsageError
from slurmbed.wait import Pending, wait_until

SLEEP = ("--output=/dev/null", "--wrap", "sleep 600")
SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def campus_file(tmp_path_factory) -> Path:
    """The campus with two mounts, a user more, its own AuthInfo, and partitions whose names only Slurm has to like."""
    folder = tmp_path_factory.mktemp("campus-file")
    (folder / "dataset").mkdir()
    (folder / "dataset" / "words.txt").write_text("of the host\n")
    (folder / "modules" / "own").mkdir(parents=True)
    (folder / "modules" / "own" / "1.0.lua").write_text('setenv("OWN", "of the host")\n')
    shutil.copytree(ROOT / "clusters" / "hooks", folder / "hooks")
    shipped = (ROOT / "clusters" / "campus.yaml").read_text()
    odd = "  - {name: all, nodes: [cpu]}\n  - {name: 'GPU/a100:80g+2', nodes: [gpu]}\n"
    shipped = shipped.replace("\nqos:", f"{odd}\nqos:")
    shipped = shipped.replace("  - DefMem", "  - AuthInfo=cred_expire=30\n  - DefMem")
    mounts = ("{host: dataset, container: /data, read_only: true}", "{host: modules, container: /modulefiles}")
    users = "users:\n  - {name: alice}\n  - {name: bob}\n  - {name: carol, uid: 1234, account: biology}\n"
    (folder / "campus.yaml").write_text("\n  - ".join((f"{shipped}\n{users}mounts:", *mounts)) + "\n")
    return folder / "campus.yaml"


@pytest.fixture(scope="module")
def slurm_cluster(slurm_start, campus_file, tmp_path_factory):
    workspace = copy_of_workspace(tmp_path_factory.mktemp("campus"))
    with slurm_start("campus", config=campus_file, workspace=workspace) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster):
    return slurm_cluster.slurm


def show(cluster: Cluster, *words: str) -> list[dict[str, str]]:
    return parse_table(cluster.slurm.runner(["sacctmgr", "--parsable2", "show", *words]).check().stdout)


def test_a_user_of_the_file_has_a_home_and_runs_jobs_with_her_uid(slurm_cluster):
    asked = "srun --quiet sh -c 'id -u; id -un; echo $SLURM_JOB_ACCOUNT; touch ~/here && echo ~'"
    said = slurm_cluster.as_user("carol")(["bash", "-lc", asked]).check().stdout
    assert said.split() == ["1234", "carol", "biology", "/home/carol"]


def test_partitions_are_those_of_the_file(slurm_cluster, slurm):
    shown = slurm.runner(["sinfo", "--noheader", "--format", "%P %l %N"]).check().stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["cpu*", "1-00:00:00", "node-[1-2]"],
        ["gpu", "12:00:00", "node-3"],
        ["debug", "15:00", "node-[1-3]"],
        ["all", "7-00:00:00", "node-[1-2]"],
        ["GPU/a100:80g+2", "7-00:00:00", "node-3"],
    ]
    assert [(node.cpus, node.gres) for node in slurm.nodes()] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert srun_by_rank(slurm_cluster, SEEN, "--nodes=2") == ["node-1", "node-2"]
    asked = ("--partition=gpu", "--constraint=nvlink", "--gres=gpu:a100:1")
    assert srun_by_rank(slurm_cluster, SEEN, *asked) == ["node-3 1 0"]
    assert srun_by_rank(slurm_cluster, "hostname", "--partition=debug", "--nodes=3") == ["node-1", "node-2", "node-3"]
    both = ("--partition=GPU/a100:80g+2,all", "--nodes=2")
    assert srun_by_rank(slurm_cluster, "hostname", *both) == ["node-1", "node-2"]
    shown = slurm.runner(["scontrol", "show", "config"]).check().stdout
    assert re.search(r"^DefMemPerCPU\s+= 250$", shown, re.MULTILINE)
    assert re.search(r"^AuthInfo\s+= cred_expire=30$", shown, re.MULTILINE)


def test_users_have_the_accounts_of_the_file(slurm_cluster):
    assert {(row["User"], row["Def Acct"]) for row in show(slurm_cluster, "user")} >= {
        ("alice", "physics"),
        ("bob", "biology"),
    }
    rows = show(slurm_cluster, "association", "format=account,user,qos,fairshare")
    who = {(row["Account"], row["User"]) for row in rows if row["User"] in ("alice", "bob")}
    assert who == {("physics", "alice"), ("biology", "alice"), ("biology", "bob")}
    assert {row["Account"]: row["Share"] for row in rows if not row["User"]}.items() >= {
        "physics": "60",
        "biology": "40",
    }.items()
    assert srun_by_rank(slurm_cluster, "echo $SLURM_JOB_ACCOUNT", "--account=biology") == ["biology"]
    assert "Invalid account" in refusal(slurm_cluster, "--account=physics", user="bob")
    assert "Invalid qos" in refusal(slurm_cluster, "--qos=urgent")


def test_a_job_over_a_limit_waits(slurm_submit):
    three_gpus = ["--partition=gpu", "--gres=gpu:3"]
    slurm_submit(*three_gpus, *SLEEP).wait_for_state("PENDING", "QOSMaxGRESPerUser")
    slurm_submit(*three_gpus, "--qos=preemptible", *SLEEP).wait_for_state("RUNNING")
    slurm_submit("--time=13:00:00", *SLEEP).wait_for_state("PENDING", "QOSMaxWallDurationPerJobLimit")
    slurm_submit("--partition=debug", "--time=16", *SLEEP).wait_for_state("PENDING", "PartitionTimeLimit")


def test_the_qos_of_the_readiness_job_is_no_way_around_limits(slurm, slurm_submit):
    for words, reason in (
        ([], "QOSMaxWallDurationPerJobLimit"),  # as long as the partition lets it
        (["--time=2"], "QOSMaxWallDurationPerJobLimit"),
        (["--time=1", "--partition=gpu", "--gres=gpu:1"], "QOSMaxGRESPerJob"),
    ):
        slurm_submit("--qos=ready", *words, *SLEEP).wait_for_state("PENDING", reason)
    minute = slurm_submit("--qos=ready", "--time=1", *SLEEP)
    minute.wait_for_state("RUNNING")
    slurm_submit("--qos=ready", "--time=1", *SLEEP).wait_for_state("PENDING", "QOSMaxJobsPerUserLimit")
    longer = slurm.runner(["scontrol", "update", f"JobId={minute.id}", "TimeLimit=10"])
    assert "Access/permission denied" in longer.stderr


def test_a_normal_job_takes_the_place_of_a_preemptible_one_which_is_queued_again(slurm_cluster, slurm, slurm_submit):
    low = slurm_submit("--partition=gpu", "--gres=gpu:a100:4", "--qos=preemptible", *SLEEP)
    low.wait_for_state("RUNNING")
    high = slurm_submit("--partition=gpu", "--gres=gpu:a100:2", *SLEEP)
    assert high.wait_for_state("RUNNING").nodelist == "node-3"
    again = low.wait_for_state("PENDING")
    shown = slurm.runner(["scontrol", "show", "job", again.id]).check().stdout
    assert "Restarts=1 " in shown
    wait_until(lambda: preempted(slurm_cluster, low.id), what="sacct shows the preemption", timeout=30)
    high.cancel()
    high.wait_until_over()
    low.wait_for_state("RUNNING")


def test_what_slurm_preempts_saves_is_queued_again_and_goes_on(slurm_cluster, slurm, slurm_submit):
    """By submitit, in the grace time of the QOS; the program checks its own result."""
    folder = slurm_cluster.workspace()
    words = ("python3", "launchers/submitit_features.py", "preempt", "--qos", "preemptible")
    with ThreadPoolExecutor() as threads:
        program = threads.submit(engine.on_login, slurm_cluster, words, timeout=400)
        low = BatchJob(slurm, wait_until(partial(steps_begun, folder), what="the job computes", timeout=120))
        high = slurm_submit("--nodes=2", "--ntasks-per-node=2", *SLEEP)
        high.wait_for_state("RUNNING")
        low.wait_for_state("PENDING")
        high.cancel()
        high.wait_until_over()
        done = program.result(timeout=400)
    assert done.ok, done.output
    assert re.search(r"result: {'started': [1-9]\d*, 'total': \d+, 'restarts': '1'}", done.stdout)


def steps_begun(folder: Path) -> str:
    """The id of submitit's job, once it has begun to compute."""
    for log in folder.glob("runs/submitit/*/*_0_log.out"):
        if "started at step" in log.read_text():
            return log.name.partition("_")[0]
    raise Pending("no such line in runs/submitit")


@pytest.mark.parametrize("lesson", ON_CAMPUS)
def test_a_lesson_on_the_campus(slurm_cluster, lesson):
    wait_until_idle(slurm_cluster)
    keeps_its_promises(slurm_cluster, page(lesson).commands)


def preempted(cluster: Cluster, job_id: str) -> None:
    states = [run.state for run in cluster.slurm.accounting(job_id)]
    if "PREEMPTED" not in states:
        raise Pending(str(states))


def test_a_job_reads_a_mount_and_cannot_write_it(slurm_cluster):
    assert srun_by_rank(slurm_cluster, "cat /data/words.txt", "--partition=gpu") == ["of the host"]
    written = engine.execute(slurm_cluster, "node-1", ["touch", "/data/mine"])
    assert "Read-only file system" in written.stderr


def test_module_files_of_a_mount_are_found(slurm_cluster):
    assert srun_by_rank(slurm_cluster, "bash -c 'module load own && echo $OWN'") == ["of the host"]


def test_hooks_run_beside_the_clusters_own(slurm_cluster, slurm):
    """The examples in clusters/hooks."""
    assert srun_by_rank(slurm_cluster, "echo $OMP_NUM_THREADS", "--cpus-per-task=2", "--time=5") == ["2"]
    assert srun_by_rank(slurm_cluster, "echo $OMP_NUM_THREADS", "--export=ALL,OMP_NUM_THREADS=7") == ["7"]
    hinted = slurm.runner(["srun", "sh", "-c", "echo $SLURM_JOB_ID; hostname"]).check()
    assert "without --time a job has its partition's default" in hinted.stderr
    job_id, node = hinted.stdout.split()
    assert "root submits no jobs here" in refusal(slurm_cluster, user="root")

    def logged() -> None:
        log = engine.execute(slurm_cluster, node, ["cat", "/var/log/jobs.log"]).stdout
        if f" job {job_id} of alice ended\n" not in log:
            raise Pending(log)

    wait_until(logged, what="the epilog has written its log", timeout=60)


def test_the_cluster_is_kept_without_its_file_and_grows_like_its_last_group(slurm_cluster, campus_file, slurm_faults):
    started = engine.started_at(slurm_cluster, "node-3")
    other = str(ROOT / "clusters" / "laptop.yaml")
    with pytest.raises(UsageError, match=r"made with a different configuration file(.|\n)*make clean"):
        make_cluster(slurm_cluster.name, config=other).up()
    try:
        grown = make_cluster(slurm_cluster.name, nodes=4).scale()
        assert [(node.cpus, node.gres, node.partitions) for node in grown[2:]] == [
            (8, "gpu:a100:4", ("gpu", "debug", "GPU/a100:80g+2"))
        ] * 2
        slurm_faults.restart("slurmctld")
    finally:
        there = make_cluster(slurm_cluster.name, config=campus_file).up()
    assert [(node.cpus, node.gres) for node in there] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert engine.started_at(slurm_cluster, "node-3") == started
    assert srun_by_rank(slurm_cluster, SEEN, "--nodes=2") == ["node-1", "node-2"]
