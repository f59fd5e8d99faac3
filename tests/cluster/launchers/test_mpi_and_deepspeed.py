"""MPI and DeepSpeed on the pod: what they compute beside the launchers' common programs, and what they leave behind."""

import re
from pathlib import Path

import pytest

from harness import jobs
from harness.clusters import TEXT
from harness.internals import parse_ranks
from slurmbed.wait import Pending, wait_until

NODES = ["node-1", "node-1", "node-2", "node-2"]  # of ranks 0 to 3
SIZE = ("--nodelist=node-1,node-2", "--nodes=2", "--gpus-per-node=2")
BY_SLURM = (*SIZE, "--ntasks-per-node=2")  # Slurm starts the ranks, else one launcher on each node
MPI = [(*SIZE, "--cpus-per-task=2", "launchers/mpirun.sbatch"), (*BY_SLURM, "launchers/pmix.sbatch")]
SSH = (*SIZE, "--cpus-per-task=2", "--mem=1G", "launchers/deepspeed-ssh.sbatch")
DEEPSPEED = [pytest.param(SSH, marks=pytest.mark.matrix), (*BY_SLURM, "launchers/deepspeed-srun.sbatch")]
TRAINING = ("train.py", "--parallel=ddp", "--backend=mpi", "--steps=5", "--profile-step=0")


def by_script(words: tuple[str, ...]) -> str:
    return Path(words[-1]).stem


@pytest.mark.parametrize("launch", DEEPSPEED, ids=by_script)
def test_zero_1_has_the_unsharded_losses_and_a_share_of_the_state_on_each_rank(slurm, launch):
    log = slurm.run(*launch, "launchers/deepspeed_train.py").stdout
    assert [rank.host for rank in parse_ranks(log)] == NODES
    summary = jobs.record(log, "zero1")
    assert (summary["stage"], summary["world_size"]) == (1, 4)
    assert summary["losses"][-1] < summary["losses"][0] / 2
    assert 0 <= 4 * summary["state_of_each_rank"] - 2 * summary["parameters"] < 32


def test_over_ssh_ranks_take_the_gpus_of_their_job_and_end_with_it(slurm_cluster, slurm_submit):
    other = slurm_submit("--nodelist=node-1", "--gpus-per-node=2", "--output=/dev/null", "--wrap", "sleep 600")
    other.wait_for_state("RUNNING")
    job = slurm_submit(*SSH, *jobs.SUM, *jobs.ON)
    log = job.wait_for_output('{"record": "sum"')
    assert [rank.host for rank in parse_ranks(log)] == NODES
    assert "Setting CUDA_VISIBLE_DEVICES=2,3" in log  # of node-1
    assert "Setting CUDA_VISIBLE_DEVICES=0,1" in log
    other.cancel()
    other.wait_until_over()
    assert jobs.left_on(slurm_cluster, 2)
    job.cancel()
    assert job.wait_until_over().state == "CANCELLED"
    wait_until_nothing_is_left(slurm_cluster)


FAILS = """
import sys
sys.path.insert(0, ".")
import torch, torch.distributed as dist
from ranks import environment, rendezvous

me = environment.read()
with rendezvous.process_group(me, "gloo", 60):
    if me.rank == 3:
        raise SystemExit("rank 3 gives up")
    while True:
        dist.all_reduce(torch.zeros(1))
"""


def test_over_ssh_a_rank_that_fails_on_the_other_node_ends_the_job(slurm_cluster, pod_workspace, slurm_submit):
    (pod_workspace / "runs" / "fails.py").write_text(FAILS)
    job = slurm_submit(*SSH, "runs/fails.py")
    assert job.wait_until_over().state == "FAILED"
    assert "rank 3 gives up" in job.stdout
    wait_until_nothing_is_left(slurm_cluster)


@pytest.mark.parametrize("launch", MPI, ids=by_script)
def test_mpi4py_adds_up(slurm_cluster, slurm, launch):
    if by_script(launch) == "pmix":
        jobs.require_pmix(slurm_cluster)
    log = slurm.run(*launch, "launchers/mpi_sum.py").stdout
    assert [rank.host for rank in parse_ranks(log)] == NODES
    assert jobs.record(log, "sum")["nodes"] == {"node-1": [0, 1], "node-2": [2, 3]}
    assert re.search("Open MPI v[56]", log)
    assert "1 sum(s) over 4 rank(s): all right" in log


def test_torchs_mpi_backend_trains(slurm, pod_workspace):
    job = slurm.run(*MPI[0], *TRAINING, *jobs.TINY, f"--text={TEXT}")
    log = job.stdout
    assert [rank.host for rank in parse_ranks(log)] == NODES
    summary = jobs.summary(pod_workspace, job.id)
    assert (summary["world_size"], summary["steps"], summary["config"]["backend"]) == (4, 5, "mpi")
    assert summary["val_loss"] < 4.5


def wait_until_nothing_is_left(pod) -> None:
    """Of what sshd started on the other node Slurm does not know when it has ended."""

    def gone() -> None:
        if left := jobs.left_on(pod, 2):
            raise Pending("; ".join(left))

    wait_until(gone, what="the nodes run nothing of alice's", timeout=60)
