"""torchrun's elastic launch goes on through losses: of a rank, of a torchrun, of a node. Others end, and say so.

On the cluster whose timeouts are short: for the tests of a lost node, and the others need no larger one.
"""

import json
import re
from collections import Counter

import pytest

from harness import engine, jobs
from harness.clusters import TEXT
from harness.internals import parse_ranks
from slurmbed import BatchJob

RANK = "^python3 launchers/distributed_sum.py"
TORCHRUN = "^/opt/launchers/bin/python3 /opt/launchers/bin/torchrun"
ELASTIC = "launchers/torchrun-elastic.sbatch"


@pytest.fixture
def slurm_cluster(faulty):
    return faulty


class Elastic:
    """A job that goes on summing on node-1 and node-2, a rank on each, once it has begun to."""

    def __init__(self, cluster):
        self.cluster = cluster
        size = ("--gpus-per-node=1", "--cpus-per-task=1")
        words = (*size, ELASTIC, *jobs.SUM, "--nodes", "any", "--seconds", "20")
        self.job = BatchJob(cluster.slurm, cluster.slurm.submit(*words))
        self.job.wait_for_output('{"record": "sum"')
        assert self.meetings() == [{"node-1": [0], "node-2": [1]}], self.log()

    def log(self) -> str:
        return self.job.stdout

    def meetings(self) -> list[dict[str, list[int]]]:
        """The ranks by node, as rank 0 said each time that all had met."""
        said = [line for line in self.log().splitlines() if line.startswith('{"record": "sum"')]
        return [json.loads(line)["nodes"] for line in said]

    def kill(self, node: str, process: str) -> None:
        """One process of the node, by the beginning of its command line; nobody has the time to clean up."""
        engine.execute(self.cluster, node, ["pkill", "-9", "--oldest", "--full", process]).check()

    def wait_completed(self, ranks: int) -> None:
        """Until the job has ended well, with as many ranks."""
        self.job.wait()
        assert re.search(rf"^\d+ sum\(s\) over {ranks} rank\(s\): all right$", self.log(), re.MULTILINE)


def test_a_killed_rank_restarts_all_ranks_on_all_nodes(slurm_cluster):
    job = Elastic(slurm_cluster)
    job.kill("node-2", RANK)
    job.wait_completed(ranks=2)
    assert job.meetings() == [{"node-1": [0], "node-2": [1]}] * 2
    assert Counter(each.rank for each in parse_ranks(job.log())) == {0: 2, 1: 2}


@pytest.mark.matrix  # to the others it is as a lost node
def test_a_killed_torchrun_leaves_a_smaller_world_that_goes_on(slurm_cluster):
    job = Elastic(slurm_cluster)
    job.kill("node-2", TORCHRUN)
    job.wait_completed(ranks=1)
    assert job.meetings()[-1] == {"node-1": [0]}
    left = engine.execute(slurm_cluster, "node-2", ["pgrep", "--full", RANK]).stdout.split()
    assert left == [], "ranks outlived their torchrun"


def test_a_lost_node_leaves_a_smaller_world_that_goes_on(slurm_cluster, slurm_faults):
    job = Elastic(slurm_cluster)
    slurm_faults.kill("node-2")
    job.wait_completed(ranks=1)
    assert job.meetings()[-1] == {"node-1": [0]}


def test_a_lost_node_ends_a_job_that_is_not_elastic(slurm_submit, slurm_faults):
    """It fails with the reason, and never passes."""
    size = ("--no-requeue", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1")
    job = slurm_submit(*size, "launchers/srun.sbatch", *jobs.SUM, *jobs.ON)
    job.wait_for_output('{"record": "sum"')
    slurm_faults.kill("node-2")
    assert job.wait_until_over().state in ("FAILED", "NODE_FAIL")
    log = job.stdout
    assert "all right" not in log
    assert "Node failure on node-2" in log or "Connection closed by peer" in log


LAST_FAILS = """
import os, sys

last = int(os.environ["SLURM_NNODES"]) - 1, int(os.environ["LOCAL_WORLD_SIZE"]) - 1
if (int(os.environ["SLURM_NODEID"]), int(os.environ["LOCAL_RANK"])) == last:
    sys.exit("the last one gives up")
"""


@pytest.mark.parametrize(
    ("nodes", "per_node"),
    [pytest.param("1", "2", id="first node"), pytest.param("2", "1", id="other node", marks=pytest.mark.matrix)],
)
def test_a_rank_that_fails_each_time_is_given_up(slurm_submit, faulty_workspace, nodes, per_node):
    """The last one; the other is through with its work."""
    (faulty_workspace / "runs" / "half.py").write_text(LAST_FAILS)
    size = (f"--nodes={nodes}", f"--gpus-per-node={per_node}", f"--cpus-per-task={per_node}")
    job = slurm_submit(*size, ELASTIC, "runs/half.py")
    assert job.wait_until_over().state == "FAILED"
    assert job.stdout.count("the last one gives up") == 1 + 3  # --max-restarts


def test_training_goes_on_from_its_checkpoint_after_a_killed_rank(slurm_cluster, slurm, faulty_workspace, slurm_submit):
    size = ("--nodes=2", "--gpus-per-node=1", "--cpus-per-task=1")
    words = ("train.py", "--parallel=ddp", "--steps=300", "--checkpoint-every=50", "--resume=auto")
    job = slurm_submit(*size, ELASTIC, *words, "--text", TEXT, *jobs.TINY)
    folder = faulty_workspace / "runs" / job.id
    slurm.wait(job.id, 300, until=lambda job: any(folder.glob("checkpoints/step-*.json")))
    engine.execute(slurm_cluster, "node-2", ["pkill", "-9", "--oldest", "--full", "^python3 train.py"]).check()
    job.wait()
    assert re.search(r"^resumed (at|from|after) .*", job.stdout, re.MULTILINE)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300
