"""torchrun on a pod: a chain of scripts with a log for each node, the MNIST job of 2 x 8."""

import json
import re
from pathlib import Path

import pytest

from harness import jobs
from harness.clusters import TEXT
from harness.internals import parse_ranks
from slurmbed import BatchJob
from slurmbed.course import data

FIVE_STEPS = ("--steps=5", "--log-every=1", "--text", TEXT, *jobs.TINY)


def test_the_chain_gives_each_node_its_log_and_the_losses_of_one_process(slurm, pod_workspace):
    size = ("--nodelist=node-3,node-4", "--gpus-per-node=2", "--cpus-per-task=2")
    alone = slurm.run("jobs/none.sbatch", *FIVE_STEPS)
    chained = slurm.run(*size, "launchers/chain/run_script.sh", "train.py", "--parallel=ddp", *FIVE_STEPS)
    logs = {file.name: file.read_text() for file in (pod_workspace / "log" / chained.id).iterdir()}
    ranks = {name: sorted((each.rank, each.node) for each in parse_ranks(log)) for name, log in logs.items()}
    assert ranks == {
        "node-3.out": [(0, "node-3"), (1, "node-3")],
        "node-4.out": [(2, "node-4"), (3, "node-4")],
    }
    assert "node-3 is node 0 of 2, rank 0 is on node-3:" in logs["node-3.out"]
    assert "node-4 is node 1 of 2, rank 0 is on node-3:" in logs["node-4.out"]
    assert losses(pod_workspace, chained) == pytest.approx(losses(pod_workspace, alone), abs=1e-5)


def losses(workspace: Path, job: BatchJob) -> dict[int, float]:
    """Training loss by step."""
    lines = map(json.loads, (workspace / "runs" / job.id / "metrics.jsonl").read_text().splitlines())
    found = {line["step"]: line["train_loss"] for line in lines}
    assert list(found) == [1, 2, 3, 4, 5]
    return found


@pytest.fixture(scope="module")
def pod_digits(pod_of_all) -> None:
    """MNIST, prepared in the pod's workspace."""
    data.digits(pod_of_all)


@pytest.mark.matrix  # at 2 x 2 test_mnist.py has it
def test_mnist_on_two_nodes_of_eight_saves_every_epoch(slurm, pod_workspace, pod_digits):
    """16 ranks by torchrun: the log says where each is, Slurm which nodes the job had; both agree."""
    slurm.runner(["mkdir", "-p", "logs"]).check()
    job = slurm.run("launchers/mnist/run_distributed.slurm", "--epochs", "2", "--limit", "4096", timeout=400)
    log = job.stdout
    where = re.findall(r"^rank (\d+) of 16: (node-\d), local rank (\d),", log, re.MULTILINE)
    ranks = sorted((int(rank), node, int(local_rank)) for rank, node, local_rank in where)
    assert {ranks[0][1], ranks[8][1]} == set(slurm.hostnames(job.record.nodelist))
    assert ranks == [(rank, ranks[rank // 8 * 8][1], rank % 8) for rank in range(16)]
    started = "Starting distributed training on 16 ranks, gloo on CPUs: CUDA finds no GPU (2 nodes x 8)"
    assert started in log
    assert re.search(r"^epoch 2/2: loss \d+\.\d+, test accuracy \d+\.\d+%$", log, re.MULTILINE)
    saved = sorted(path.name for path in (pod_workspace / "checkpoints").glob("*.pt"))
    assert saved == ["checkpoint_epoch_1.pt", "checkpoint_epoch_2.pt"]


def test_mnist_resumes_from_a_checkpoint_as_if_it_had_not_stopped(slurm, pod_digits):
    words = ("--output=runs/%j.log", "--nodes=1", "--gpus-per-node=2", "--cpus-per-task=2")
    words += ("launchers/mnist/run_distributed.slurm",)
    words += ("--limit", "512", "--least-accuracy", "0", "--checkpoints", "checkpoints/small", "--epochs", "2")
    straight = slurm.run(*words).stdout
    resumed = slurm.run(*words, "--resume", "checkpoints/small/checkpoint_epoch_1.pt").stdout
    assert "resumed from checkpoints/small/checkpoint_epoch_1.pt, after epoch 1" in resumed
    epochs = [[line for line in log.splitlines() if line.startswith("epoch ")] for log in (straight, resumed)]
    assert len(epochs[0]) == 2
    assert epochs[1] == epochs[0][1:]
