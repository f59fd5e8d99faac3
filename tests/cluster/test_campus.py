"""A campus in small, from a file: partitions, QOS, accounts, limits, preemption, a mount."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import copy_of_workspace, make_cluster, running
from harness.internals import ROOT, Cluster, parse_table
from harness.jobs import refusal, srun_by_rank, until, wait_until_idle
from harness.lessons import ON_CAMPUS, keeps_its_promises, page
from harness.names import NAME
from slurmbed.errors import UsageError
from slurmbed.wait import Pending, wait_until

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
def campus(image, campus_file, tmp_path_factory):
    workspace = copy_of_workspace(tmp_path_factory.mktemp("campus"))
    with running(f"{NAME}-campus", config=campus_file, workspace=workspace) as cluster:
        yield cluster


def show(cluster: Cluster, *words: str) -> list[dict[str, str]]:
    return parse_table(cluster.slurm.runner(["sacctmgr", "--parsable2", "show", *words]).check().stdout)


def test_a_user_of_the_file_has_a_home_and_runs_jobs_with_her_uid(campus):
    asked = "srun --quiet sh -c 'id -u; id -un; echo $SLURM_JOB_ACCOUNT; touch ~/here && echo ~'"
    said = campus.as_user("carol")(["bash", "-lc", asked]).check().stdout
    assert said.split() == ["1234", "carol", "biology", "/home/carol"]


def test_partitions_are_those_of_the_file(campus):
    shown = campus.slurm.runner(["sinfo", "--noheader", "--format", "%P %l %N"]).check().stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["cpu*", "1-00:00:00", "node-[1-2]"],
        ["gpu", "12:00:00", "node-3"],
        ["debug", "15:00", "node-[1-3]"],
        ["all", "7-00:00:00", "node-[1-2]"],
        ["GPU/a100:80g+2", "7-00:00:00", "node-3"],
    ]
    assert [(node.cpus, node.gres) for node in campus.slurm.nodes()] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert srun_by_rank(campus, SEEN, "--nodes=2") == ["node-1", "node-2"]
    assert srun_by_rank(campus, SEEN, "--partition=gpu", "--constraint=nvlink", "--gres=gpu:a100:1") == ["node-3 1 0"]
    assert srun_by_rank(campus, "hostname", "--partition=debug", "--nodes=3") == ["node-1", "node-2", "node-3"]
    assert srun_by_rank(campus, "hostname", "--partition=GPU/a100:80g+2,all", "--nodes=2") == ["node-1", "node-2"]
    shown = campus.slurm.runner(["scontrol", "show", "config"]).check().stdout
    assert re.search(r"^DefMemPerCPU\s+= 250$", shown, re.MULTILINE)
    assert re.search(r"^AuthInfo\s+= cred_expire=30$", shown, re.MULTILINE)


def test_users_have_the_accounts_of_the_file(campus):
    assert {(row["User"], row["Def Acct"]) for row in show(campus, "user")} >= {
        ("alice", "physics"),
        ("bob", "biology"),
    }
    rows = show(campus, "association", "format=account,user,qos,fairshare")
    who = {(row["Account"], row["User"]) for row in rows if row["User"] in ("alice", "bob")}
    assert who == {("physics", "alice"), ("biology", "alice"), ("biology", "bob")}
    assert {row["Account"]: row["Share"] for row in rows if not row["User"]}.items() >= {
        "physics": "60",
        "biology": "40",
    }.items()
    assert srun_by_rank(campus, "echo $SLURM_JOB_ACCOUNT", "--account=biology") == ["biology"]
    assert "Invalid account" in refusal(campus, "--account=physics", user="bob")
    assert "Invalid qos" in refusal(campus, "--qos=urgent")


def test_a_job_over_a_limit_waits(campus, submit):
    three_gpus = ["--partition=gpu", "--gres=gpu:3"]
    until(campus, submit(campus, *three_gpus), "PENDING", "QOSMaxGRESPerUser")
    until(campus, submit(campus, *three_gpus, "--qos=preemptible"), "RUNNING")
    until(campus, submit(campus, "--time=13:00:00"), "PENDING", "QOSMaxWallDurationPerJobLimit")
    until(campus, submit(campus, "--partition=debug", "--time=16"), "PENDING", "PartitionTimeLimit")


def test_the_qos_of_the_readiness_job_is_no_way_around_limits(campus, submit):
    for words, reason in (
        ([], "QOSMaxWallDurationPerJobLimit"),  # as long as the partition lets it
        (["--time=2"], "QOSMaxWallDurationPerJobLimit"),
        (["--time=1", "--partition=gpu", "--gres=gpu:1"], "QOSMaxGRESPerJob"),
    ):
        until(campus, submit(campus, "--qos=ready", *words), "PENDING", reason)
    minute = submit(campus, "--qos=ready", "--time=1")
    until(campus, minute, "RUNNING")
    until(campus, submit(campus, "--qos=ready", "--time=1"), "PENDING", "QOSMaxJobsPerUserLimit")
    longer = campus.slurm.runner(["scontrol", "update", f"JobId={minute}", "TimeLimit=10"])
    assert "Access/permission denied" in longer.stderr


def test_a_normal_job_takes_the_place_of_a_preemptible_one_which_is_queued_again(campus, submit):
    low = submit(campus, "--partition=gpu", "--gres=gpu:a100:4", "--qos=preemptible")
    until(campus, low, "RUNNING")
    high = submit(campus, "--partition=gpu", "--gres=gpu:a100:2")
    assert until(campus, high, "RUNNING").nodelist == "node-3"
    again = until(campus, low, "PENDING")
    shown = campus.slurm.runner(["scontrol", "show", "job", again.id]).check().stdout
    assert "Restarts=1 " in shown
    wait_until(lambda: preempted(campus, low), what="sacct shows the preemption", timeout=30)
    campus.slurm.cancel(high)
    campus.slurm.wait(high, 60)
    until(campus, low, "RUNNING")


def test_what_slurm_preempts_saves_is_queued_again_and_goes_on(campus, submit):
    """By submitit, in the grace time of the QOS; the program checks its own result."""
    folder = engine.workspace(campus)
    words = ("python3", "launchers/submitit_features.py", "preempt", "--qos", "preemptible")
    with ThreadPoolExecutor() as threads:
        program = threads.submit(engine.on_login, campus, words, timeout=400)
        low = wait_until(partial(steps_begun, folder), what="the job computes", timeout=120)
        high = submit(campus, "--nodes=2", "--ntasks-per-node=2")
        until(campus, high, "RUNNING")
        until(campus, low, "PENDING")
        campus.slurm.cancel(high)
        campus.slurm.wait(high, 60)
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
def test_a_lesson_on_the_campus(campus, lesson):
    wait_until_idle(campus)
    keeps_its_promises(campus, page(lesson).commands)


def preempted(cluster: Cluster, job_id: str) -> None:
    states = [run.state for run in cluster.slurm.accounting(job_id)]
    if "PREEMPTED" not in states:
        raise Pending(str(states))


def test_a_job_reads_a_mount_and_cannot_write_it(campus):
    assert srun_by_rank(campus, "cat /data/words.txt", "--partition=gpu") == ["of the host"]
    written = engine.execute(campus, "node-1", ["touch", "/data/mine"])
    assert "Read-only file system" in written.stderr


def test_module_files_of_a_mount_are_found(campus):
    assert srun_by_rank(campus, "bash -c 'module load own && echo $OWN'") == ["of the host"]


def test_hooks_run_beside_the_clusters_own(campus):
    """The examples in clusters/hooks."""
    assert srun_by_rank(campus, "echo $OMP_NUM_THREADS", "--cpus-per-task=2", "--time=5") == ["2"]
    assert srun_by_rank(campus, "echo $OMP_NUM_THREADS", "--export=ALL,OMP_NUM_THREADS=7") == ["7"]
    hinted = campus.slurm.runner(["srun", "sh", "-c", "echo $SLURM_JOB_ID; hostname"]).check()
    assert "without --time a job has its partition's default" in hinted.stderr
    job_id, node = hinted.stdout.split()
    assert "root submits no jobs here" in refusal(campus, user="root")

    def logged() -> None:
        log = engine.execute(campus, node, ["cat", "/var/log/jobs.log"]).stdout
        if f" job {job_id} of alice ended\n" not in log:
            raise Pending(log)

    wait_until(logged, what="the epilog has written its log", timeout=60)


def test_the_cluster_is_kept_without_its_file_and_grows_like_its_last_group(campus, campus_file):
    started = engine.started_at(campus, "node-3")
    other = str(ROOT / "clusters" / "laptop.yaml")
    with pytest.raises(UsageError, match=r"made with a different configuration file(.|\n)*make clean"):
        make_cluster(campus.name, config=other).up()
    try:
        grown = make_cluster(campus.name, nodes=4).scale()
        assert [(node.cpus, node.gres, node.partitions) for node in grown[2:]] == [
            (8, "gpu:a100:4", ("gpu", "debug", "GPU/a100:80g+2"))
        ] * 2
        engine.restart(campus, "slurmctld")
    finally:
        there = make_cluster(campus.name, config=campus_file).up()
    assert [(node.cpus, node.gres) for node in there] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert engine.started_at(campus, "node-3") == started
    assert srun_by_rank(campus, SEEN, "--nodes=2") == ["node-1", "node-2"]
