"""torchrun on a pod: elastic through losses, a chain of scripts with a log for each node, the MNIST job of 2 x 8."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from slurmbed.course import data
from slurmbed.slurm.placement import parse_ranks
from slurmbed.slurm.records import Job

RANK = "^python3 launchers/distributed_sum.py"
TORCHRUN = "^/opt/launchers/bin/python3 /opt/launchers/bin/torchrun"
MODEL = ("--layers=1", "--channels=32", "--heads=4", "--block-size=16", "--sample-length=20")
FIVE_STEPS = ("train.py", "--parallel=ddp", "--steps=5", "--log-every=1", *MODEL)


@pytest.fixture(scope="module")
def text(pod_of_all) -> str:
    """The prepared text, as a path inside the workspace."""
    return data.text(pod_of_all).path


class Elastic:
    """A job that goes on summing on node-1 and node-2, two ranks on each, once it has begun to."""

    def __init__(self, pod, workspace):
        self.pod = pod
        size = ("--nodelist=node-1,node-2", "--gpus-per-node=2", "--cpus-per-task=2")
        words = ("launchers/distributed_sum.py", "--nodes", "any", "--seconds", "20")
        self.id = pod.slurm.submit(*size, "launchers/torchrun-elastic.sbatch", *words)
        self.file = workspace / "runs" / f"{self.id}.log"
        pod.slurm.wait(self.id, 150, until=lambda job: bool(self.meetings()))
        assert [each["nodes"] for each in self.meetings()] == [{"node-1": [0, 1], "node-2": [2, 3]}], self.log()

    def log(self) -> str:
        return self.file.read_text() if self.file.exists() else ""

    def meetings(self) -> list[dict]:
        """What rank 0 said each time that all ranks had met."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith('{"record": "sum"')]

    def kill(self, node: str, process: str) -> None:
        """One process of the node, by the beginning of its command line; nobody has the time to clean up."""
        self.pod.compose.exec(node, ["pkill", "-9", "--oldest", "--full", process], timeout=30).check()

    def wait_completed(self) -> None:
        self.pod.slurm.wait_completed(self.id, 240, log=self.log)


def test_a_killed_rank_restarts_all_ranks_on_all_nodes(pod, pod_workspace):
    job = Elastic(pod, pod_workspace)
    job.kill("node-2", RANK)
    job.wait_completed()
    assert [each["nodes"] for each in job.meetings()] == [{"node-1": [0, 1], "node-2": [2, 3]}] * 2
    assert Counter(each.rank for each in parse_ranks(job.log())) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert re.search(r"^\d+ sum\(s\) over 4 rank\(s\): all right$", job.log(), re.MULTILINE)


def test_a_killed_torchrun_leaves_a_smaller_world_that_goes_on(pod, pod_workspace):
    job = Elastic(pod, pod_workspace)
    job.kill("node-2", TORCHRUN)
    job.wait_completed()
    assert [each["nodes"] for each in job.meetings()][-1] == {"node-1": [0, 1]}
    assert re.search(r"^\d+ sum\(s\) over 2 rank\(s\): all right$", job.log(), re.MULTILINE)
    left = pod.compose.exec("node-2", ["pgrep", "--full", RANK]).stdout.split()
    assert left == [], "ranks outlived their torchrun"


LAST_FAILS = """
import os, sys

last = int(os.environ["SLURM_NNODES"]) - 1, int(os.environ["LOCAL_WORLD_SIZE"]) - 1
if (int(os.environ["SLURM_NODEID"]), int(os.environ["LOCAL_RANK"])) == last:
    sys.exit("the last one gives up")
"""


@pytest.mark.parametrize(("nodes", "per_node"), [("1", "2"), ("2", "1")], ids=["first node", "other node"])
def test_a_rank_that_fails_each_time_is_given_up(pod, pod_workspace, nodes, per_node):
    """The last one; the other is through with its work."""
    (pod_workspace / "runs" / "half.py").write_text(LAST_FAILS)
    size = (f"--nodes={nodes}", f"--gpus-per-node={per_node}", f"--cpus-per-task={per_node}", "--output=runs/%j.log")
    job_id = pod.slurm.submit(*size, "launchers/torchrun-elastic.sbatch", "runs/half.py")
    assert pod.slurm.wait(job_id, 240).state == "FAILED"
    log = (pod_workspace / "runs" / f"{job_id}.log").read_text()
    assert log.count("the last one gives up") == 1 + 3  # --max-restarts


def test_a_lost_node_leaves_a_smaller_world_that_goes_on(pod, pod_workspace):
    job = Elastic(pod, pod_workspace)
    pod.compose.by_name("kill", "node-2", timeout=60).check()
    try:
        job.wait_completed()
    finally:
        pod.compose.by_name("start", "node-2", timeout=60).check()
        pod.readiness.wait_ready(4)
    assert [each["nodes"] for each in job.meetings()][-1] == {"node-1": [0, 1]}
    assert re.search(r"^\d+ sum\(s\) over 2 rank\(s\): all right$", job.log(), re.MULTILINE)


def test_training_goes_on_from_its_checkpoint_after_a_killed_rank(pod, pod_workspace, text):
    size = ("--nodes=2", "--gpus-per-node=1", "--cpus-per-task=1", "--output=runs/%j.log")
    words = ("train.py", "--parallel=ddp", "--steps=300", "--checkpoint-every=50", "--resume=auto", "--text", text)
    job_id = pod.slurm.submit(*size, "launchers/torchrun-elastic.sbatch", *words, *MODEL)
    folder, log = pod_workspace / "runs" / job_id, pod_workspace / "runs" / f"{job_id}.log"
    pod.slurm.wait(job_id, 150, until=lambda job: any(folder.glob("checkpoints/step-*.json")))
    node = pod.slurm.hostnames(pod.slurm.job(job_id).nodelist)[1]
    pod.compose.exec(node, ["pkill", "-9", "--oldest", "--full", "^python3 train.py"], timeout=30).check()
    pod.slurm.wait_completed(job_id, 240, log=log.read_text)
    assert re.search(r"^resumed (at|from|after) .*", log.read_text(), re.MULTILINE)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300


def test_the_chain_gives_each_node_its_log_and_plain_torchruns_losses(pod, pod_job, pod_workspace, text):
    size = ("--nodelist=node-3,node-4", "--gpus-per-node=2", "--cpus-per-task=2")
    words = (*FIVE_STEPS, "--text", text)
    plain, _ = pod_job(*size, "launchers/torchrun.sbatch", *words, timeout=240)
    chained, _ = pod_job(*size, "launchers/chain/run_script.sh", *words, timeout=240)
    logs = {file.name: file.read_text() for file in (pod_workspace / "log" / chained.id).iterdir()}
    ranks = {name: sorted((each.rank, each.node) for each in parse_ranks(log)) for name, log in logs.items()}
    assert ranks == {
        "node-3.out": [(0, "node-3"), (1, "node-3")],
        "node-4.out": [(2, "node-4"), (3, "node-4")],
    }
    assert "node-3 is node 0 of 2, rank 0 is on node-3:" in logs["node-3.out"]
    assert "node-4 is node 1 of 2, rank 0 is on node-3:" in logs["node-4.out"]
    assert losses(pod_workspace, chained) == losses(pod_workspace, plain)


def losses(workspace: Path, job: Job) -> dict[int, float]:
    """Training loss by step."""
    lines = map(json.loads, (workspace / "runs" / job.id / "metrics.jsonl").read_text().splitlines())
    found = {line["step"]: line["train_loss"] for line in lines}
    assert list(found) == [1, 2, 3, 4, 5]
    return found


def test_mnist_on_two_nodes_of_eight_saves_every_epoch(pod, pod_workspace):
    data.digits(pod)
    pod.slurm.runner(["mkdir", "-p", "logs"]).check()
    job_id = pod.slurm.submit("launchers/mnist/run_distributed.slurm", "--epochs", "2", "--limit", "4096")
    log = pod_workspace / "logs" / f"{job_id}.out"
    pod.slurm.wait_completed(job_id, 300, log=log.read_text)
    where = re.findall(r"^rank (\d+) of 16: (node-\d), local rank (\d),", log.read_text(), re.MULTILINE)
    ranks = sorted((int(rank), node, int(local_rank)) for rank, node, local_rank in where)
    first, second = ranks[0][1], ranks[-1][1]
    assert first < second
    assert ranks == [(rank, first if rank < 8 else second, rank % 8) for rank in range(16)]
    started = "Starting distributed training on 16 ranks, gloo on CPUs: CUDA finds no GPU (2 nodes x 8)"
    assert started in log.read_text()
    assert re.search(r"^epoch 2/2: loss \d+\.\d+, test accuracy \d+\.\d+%$", log.read_text(), re.MULTILINE)
    saved = sorted(path.name for path in (pod_workspace / "checkpoints").glob("*.pt"))
    assert saved == ["checkpoint_epoch_1.pt", "checkpoint_epoch_2.pt"]


def test_mnist_resumes_from_a_checkpoint_as_if_it_had_not_stopped(pod, pod_job):
    data.digits(pod)
    words = ("--nodes=1", "--gpus-per-node=2", "--cpus-per-task=2", "launchers/mnist/run_distributed.slurm")
    words += ("--limit", "512", "--least-accuracy", "0", "--checkpoints", "checkpoints/small", "--epochs", "2")
    _, straight = pod_job(*words)
    _, resumed = pod_job(*words, "--resume", "checkpoints/small/checkpoint_epoch_1.pt")
    assert "resumed from checkpoints/small/checkpoint_epoch_1.pt, after epoch 1" in resumed
    epochs = [[line for line in log.splitlines() if line.startswith("epoch ")] for log in (straight, resumed)]
    assert len(epochs[0]) == 2
    assert epochs[1] == epochs[0][1:]
