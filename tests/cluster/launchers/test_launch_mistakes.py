"""The classic mistakes of launch scripts: each ends in a failure that says what is wrong, and never in a pass.

Those with the mark `matrix` end in errors that tests/training/test_rendezvous.py shows too, without Slurm.
"""

import pytest

PROGRAM = "launchers/distributed_sum.py"
SUM = f"python3 {PROGRAM}"
ONE_EACH = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--output=runs/%j.log")
FIRST_NODE = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1); '
MEET = FIRST_NODE + "export MASTER_PORT=$((20000 + SLURM_JOB_ID)); "
RANKS = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"
BOUND = 300  # seconds, several times what the scripts themselves wait


@pytest.fixture
def fail(slurm_submit):
    """The log of a job that must fail by itself within the bound."""

    def fail(*words: str) -> str:
        job = slurm_submit("--no-requeue", *words)
        state, log = job.wait_until_over(BOUND).state, job.stdout
        assert state == "FAILED", f"{state}\n{log}"
        assert "all right" not in log
        assert "rendezvous.py" not in log, "a traceback buries the reason"
        return log

    return fail


def test_a_machine_rank_that_was_expanded_on_the_batch_host(fail, pod_workspace):
    right = (pod_workspace / "launchers" / "accelerate.sbatch").read_text()
    wrong = right.replace('"$SLURM_NODEID"', "'$SLURM_NODEID'")  # ends the quotes that kept it for the node
    assert wrong != right
    wrong = wrong.replace("timeout=60", "timeout=20")
    (pod_workspace / "runs" / "wrong.sbatch").write_text(wrong)
    log = fail("--gpus-per-node=2", "--cpus-per-task=2", "--output=runs/%j.log", "runs/wrong.sbatch")
    assert "wait timeout after 20000ms" in log  # accelerate's own bound: two machines of rank 0 wait for each other


def test_ranks_that_were_counted_on_the_batch_host(fail):
    node = "export NODE=$SLURM_NODEID; "  # the batch script's, so 0 on all
    ranks = "RANK=$((NODE + SLURM_LOCALID)) LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=2"
    log = fail(*ONE_EACH, "--wrap", MEET + node + f"srun --kill-on-bad-exit sh -c '{ranks} {SUM}'")
    assert "two processes say that they are rank" in log
    assert "was the node's number expanded in the batch script" in log


@pytest.mark.matrix
def test_a_master_address_that_is_each_nodes_own(fail):
    log = fail(*ONE_EACH, "--wrap", f"export MASTER_ADDR=localhost MASTER_PORT=20999; srun {SUM} --timeout 20")
    assert "found nobody at localhost:20999 within 20 s" in log
    assert "MASTER_ADDR must be the name of the node that has rank 0" in log


@pytest.mark.matrix
def test_a_port_that_another_job_has_taken(slurm_submit, fail):
    meet = FIRST_NODE + "export MASTER_PORT=20998; "
    size = (*ONE_EACH, "--nodelist=node-[1-2]")
    first = slurm_submit("--no-requeue", *size, "--wrap", f"{meet} srun {SUM} --seconds 600")
    first.wait_for_output('"record": "sum"')
    second = fail(*size, "--wrap", f"{meet} srun --kill-on-bad-exit {SUM}")
    assert first.state == "RUNNING"
    assert "rank 0 on node-1 cannot hold the meeting at node-1:20998" in second
    assert "a port that another job has taken?" in second


@pytest.mark.matrix
def test_a_world_size_that_is_more_than_there_are(fail):
    log = fail(*ONE_EACH, "--wrap", MEET + f"srun sh -c '{RANKS} WORLD_SIZE=4 {SUM} --timeout 20'")
    assert "of 4 ranks these did not come within 20 s: 2, 3. There are, by node: node-1: 0; node-2: 1" in log


def test_a_world_size_that_is_less_than_there_are(fail):
    log = fail(*ONE_EACH, "--wrap", MEET + f"srun sh -c '{RANKS} WORLD_SIZE=1 {SUM} --timeout 20'")
    assert "rank 1 is not in a world of 1 (RANK, WORLD_SIZE)" in log


def test_nodes_that_are_each_a_world_of_their_own(fail):
    log = fail(*ONE_EACH, "--wrap", f"srun torchrun --standalone --nproc-per-node=2 {PROGRAM}")
    assert "the 2 ranks are on 1 node(s)" in log
    assert "is each node a world of its own?" in log


def test_a_program_started_without_srun(fail):
    log = fail(*ONE_EACH, "--wrap", SUM)
    assert "this job has 2 tasks, but 1 process was started, without srun" in log
