"""Clusters of a shape: GPUs that no machine has, and a campus with partitions, QOS, accounts and preemption."""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from conftest import NAME
from slurmbed.cluster.cluster import USER, Cluster
from slurmbed.cluster.plan import WORKSPACE, Settings
from slurmbed.engine.compose import ROOT
from slurmbed.errors import UsageError
from slurmbed.process import run
from slurmbed.slurm.records import Job
from slurmbed.wait import Pending, wait_until

SEEN = "echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"


def made_from(file: Path, name: str, folder: Path, say: Callable[[str], None] = print) -> Iterator[Cluster]:
    """A cluster of that name from a file; removed afterwards, whatever happens."""
    cluster = Cluster(Settings(name=name, config=str(file), workspace=str(folder)), say)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.clean()


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What ``up`` of the pod said."""
    return []


@pytest.fixture(scope="module")
def h100_pod(image, heard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pod")
    yield from made_from(ROOT / "clusters" / "gpu-pod.yaml", f"{NAME}-shapes", folder, heard.append)


@pytest.fixture(scope="module")
def campus_file(tmp_path_factory) -> Path:
    """The campus with one mount more."""
    folder = tmp_path_factory.mktemp("campus-file")
    (folder / "dataset").mkdir()
    (folder / "dataset" / "words.txt").write_text("of the host\n")
    shipped = (ROOT / "clusters" / "campus.yaml").read_text()
    (folder / "campus.yaml").write_text(
        f"{shipped}\nmounts:\n  - {{host: dataset, container: /data, read_only: true}}\n"
    )
    return folder / "campus.yaml"


@pytest.fixture(scope="module")
def campus(image, campus_file, tmp_path_factory):
    yield from made_from(campus_file, f"{NAME}-shapes-campus", tmp_path_factory.mktemp("campus"))


def srun(cluster: Cluster, *words: str, script: str = SEEN) -> list[str]:
    """What the tasks printed, by rank."""
    ran = cluster.slurm.runner(["srun", "--label", *words, "sh", "-c", script]).check().stdout
    lines = sorted(ran.splitlines(), key=lambda line: int(line.partition(":")[0]))
    return [line.partition(":")[2].strip() for line in lines]


def refusal(cluster: Cluster, *words: str, user: str = "alice") -> str:
    ran = cluster.as_user(user)(["srun", "--immediate=5", *words, "true"])
    assert not ran.ok
    return ran.stderr


@pytest.fixture
def submit():
    """Submit a job; cancelled in the end."""
    submitted: list[tuple[Cluster, str]] = []

    def submit(cluster: Cluster, *words: str, script: str = "sleep 600") -> str:
        job_id = cluster.slurm.submit("--output=%j.log", *words, "--wrap", script)
        submitted.append((cluster, job_id))
        return job_id

    yield submit
    for cluster, job_id in submitted:
        cluster.slurm.cancel(job_id)
    for cluster, job_id in submitted:
        cluster.slurm.wait(job_id, 60)


def until(cluster: Cluster, job_id: str, state: str, reason: str = "") -> Job:
    job = cluster.slurm.wait(job_id, 60, until=lambda job: job.state == state and (not reason or job.reason == reason))
    assert job.state == state
    return job


# The pod: 2 nodes, each of 8 H100 and 32 CPUs in name.


def test_slurm_shows_the_gpus_and_cpus_of_the_file(h100_pod, heard):
    assert [(node.name, node.gres, node.cpus) for node in h100_pod.slurm.nodes()] == [
        ("node-1", "gpu:h100:8", 32),
        ("node-2", "gpu:h100:8", 32),
    ]
    shown = h100_pod.slurm.runner(["sinfo", "--noheader", "--format", "%P %G %f"]).check().stdout
    assert shown.split() == ["batch*", "gpu:h100:8", "pod,nvlink"]
    assert any("8 emulated GPUs of type h100 for each node of the group pod; ranks compute on CPUs" in s for s in heard)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--gres=gpu:h100:1"], ["node-1 1 0"]),
        (["--gres=gpu:2", "--constraint=nvlink"], ["node-1 2 0,1"]),
        (["--nodes=2", "--gpus-per-node=h100:2"], ["node-1 2 0,1", "node-2 2 0,1"]),
        (
            ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=h100:1"],
            [f"node-{n} 2 {i}" for n in (1, 2) for i in (0, 1)],
        ),
        (
            ["--nodes=2", "--ntasks-per-node=8", "--gpus-per-task=1"],
            [f"node-{n} 8 {i}" for n in (1, 2) for i in range(8)],
        ),
        (["--nodes=1", "--ntasks=4", "--gpus-per-node=4", "--gpu-bind=single:1"], [f"node-1 4 {i}" for i in range(4)]),
        (["--nodes=1", "--ntasks=2", "--gpus-per-node=4", "--gpu-bind=map_gpu:2,3"], ["node-1 4 2", "node-1 4 3"]),
        (["--nodes=1", "--ntasks=2", "--gpus-per-node=2", "--gpu-bind=none"], ["node-1 2 0,1"] * 2),
        (["--nodes=1", "--ntasks=16", "--cpus-per-task=2"], ["node-1"] * 16),
    ],
    ids=lambda value: " ".join(word for word in value if word.startswith("-")),
)
def test_tasks_see_the_gpus_they_asked_for(h100_pod, words, seen):
    assert srun(h100_pod, *words) == seen


@pytest.mark.parametrize("word", ["--gres=gpu:h100:9", "--gres=gpu:a100:1", "--cpus-per-task=33"])
def test_what_no_node_has_is_refused(h100_pod, word):
    assert re.search("Requested node configuration is not available|CPU count per node", refusal(h100_pod, word))


def test_two_jobs_never_share_a_gpu(h100_pod, submit):
    words = ["--gres=gpu:h100:4", "--gpus-per-node=4", "--gpus=4", "--gpus-per-task=4"]
    jobs = [submit(h100_pod, "--nodes=1", "--ntasks=1", word, script=f"{SEEN}; sleep 600") for word in words]
    held = [set(gpus_of(h100_pod, job_id)) for job_id in jobs]
    assert set.union(*held) == {(f"node-{n}", gpu) for n in (1, 2) for gpu in range(8)}
    assert [len(each) for each in held] == [4] * 4  # 16 in all, so none is in two sets

    surplus = submit(h100_pod, "--gres=gpu:1", script=f"{SEEN}; sleep 600")
    until(h100_pod, surplus, "PENDING", "Resources")
    h100_pod.slurm.cancel(jobs[2])
    assert set(gpus_of(h100_pod, surplus)) < held[2]


def gpus_of(cluster: Cluster, job_id: str) -> list[tuple[str, int]]:
    """Node and device of each GPU that a running job sees, from its log."""
    until(cluster, job_id, "RUNNING")

    def read() -> str:
        text = cluster.slurm.runner(["cat", f"{job_id}.log"]).stdout
        if not text.endswith("\n"):
            raise Pending("no whole line in the log")
        return text

    node, _, devices = wait_until(read, what=f"log of job {job_id}", timeout=30).split()
    return [(node, int(device)) for device in devices.split(",")]


# The campus: partitions, accounts, QOS, preemption.


def show(cluster: Cluster, *words: str) -> list[dict[str, str]]:
    shown = cluster.slurm.runner(["sacctmgr", "--parsable2", "show", *words]).check().stdout
    return list(csv.DictReader(shown.splitlines(), delimiter="|"))


def test_partitions_are_those_of_the_file(campus):
    shown = campus.slurm.runner(["sinfo", "--noheader", "--format", "%P %l %N"]).check().stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["cpu*", "1-00:00:00", "node-[1-2]"],
        ["gpu", "12:00:00", "node-3"],
        ["debug", "15:00", "node-[1-3]"],
    ]
    assert [(node.cpus, node.gres) for node in campus.slurm.nodes()] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert srun(campus, "--nodes=2") == ["node-1", "node-2"]
    assert srun(campus, "--partition=gpu", "--constraint=nvlink", "--gres=gpu:a100:1") == ["node-3 1 0"]
    assert srun(campus, "--partition=debug", "--nodes=3", script="hostname") == ["node-1", "node-2", "node-3"]
    shown = campus.slurm.runner(["scontrol", "show", "config"]).check().stdout
    assert re.search(r"^DefMemPerCPU\s+= 100$", shown, re.MULTILINE)


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
    assert srun(campus, "--account=biology", script="echo $SLURM_JOB_ACCOUNT") == ["biology"]
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
    campus.slurm.runner(["scontrol", "update", f"JobId={low}", "StartTime=now"]).check()
    until(campus, low, "RUNNING")


def test_what_slurm_preempts_saves_is_queued_again_and_goes_on(campus, submit):
    """By submitit, in the grace time of the QOS; the program checks its own result."""
    folder = campus.workspace()
    shutil.copytree(WORKSPACE / "launchers", folder / "launchers")
    campus.slurm.runner(["mkdir", "runs"]).check()
    words = ("python3", "launchers/submitit_features.py", "preempt", "--qos", "preemptible")
    argv = campus.compose.exec_argv("login", words, USER, ("--workdir", "/workspace"))
    with ThreadPoolExecutor() as threads:
        program = threads.submit(run, argv, timeout=400)
        low = wait_until(partial(steps_begun, folder), what="the job computes", timeout=120)
        high = submit(campus, "--nodes=2", "--ntasks-per-node=2")
        until(campus, high, "RUNNING")
        until(campus, low, "PENDING")
        campus.slurm.cancel(high)
        campus.slurm.wait(high, 60)
        campus.slurm.runner(["scontrol", "update", f"JobId={low}", "StartTime=now"]).check()
        done = program.result(timeout=400)
    assert done.ok, done.output
    assert re.search(r"result: {'started': [1-9]\d*, 'total': \d+, 'restarts': '1'}", done.stdout)


def steps_begun(folder: Path) -> str:
    """The id of submitit's job, once it has begun to compute."""
    for log in folder.glob("runs/submitit/*/*_0_log.out"):
        if "started at step" in log.read_text():
            return log.name.partition("_")[0]
    raise Pending("no such line in runs/submitit")


def preempted(cluster: Cluster, job_id: str) -> None:
    states = [row.state for row in cluster.slurm.accounting(job_id)]
    if "PREEMPTED" not in states:
        raise Pending(str(states))


def test_a_job_reads_a_mount_and_cannot_write_it(campus):
    assert srun(campus, "--partition=gpu", script="cat /data/words.txt") == ["of the host"]
    written = campus.compose.exec("node-1", ["touch", "/data/mine"])
    assert "Read-only file system" in written.stderr


def test_the_cluster_is_kept_without_its_file_and_grows_like_its_last_group(campus, campus_file):
    started = campus.compose.inspect("node-3")["State"]["StartedAt"]
    other = str(ROOT / "clusters" / "laptop.yaml")
    with pytest.raises(UsageError, match=r"made with another file(.|\n)*make clean"):
        Cluster(Settings(name=campus.name, config=other), print).plan()
    try:
        grown = Cluster(Settings(name=campus.name, nodes="4"), print).scale()
        assert [(node.cpus, node.gres, node.partitions) for node in grown[2:]] == [
            (8, "gpu:a100:4", ("gpu", "debug"))
        ] * 2
        run(["docker", "restart", "--time", "2", campus.compose.container_name("slurmctld")], timeout=60).check()
    finally:
        there = Cluster(Settings(name=campus.name, config=str(campus_file)), print).up()
    assert [(node.cpus, node.gres) for node in there] == [(2, ""), (2, ""), (8, "gpu:a100:4")]
    assert campus.compose.inspect("node-3")["State"]["StartedAt"] == started
    assert srun(campus, "--nodes=2") == ["node-1", "node-2"]
