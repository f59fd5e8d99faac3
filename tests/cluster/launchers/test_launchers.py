"""Every launcher of workspace/launchers: each rank once, on the node where Slurm says; the same losses under all.

`make test` trains on four nodes under one launcher for each way to start ranks. Under the others the ranks of two nodes
sum, here or in other files that are named below. The rest, every launcher at every size, has the mark `matrix`:
`make test-launchers` runs that too.
"""

import pytest

from harness import jobs
from harness.clusters import TEXT
from slurmbed.course import data, launchers
from slurmbed.course.launchers import LAUNCHERS
from slurmbed.errors import JobFailed

# One launcher for each way to start ranks: Slurm's, torchrun's, MPI's, Ray's, ssh, a Python program that submits.
MECHANISMS = ("srun", "torchrun", "mpirun", "ray", "deepspeed-ssh", "submitit")
# The first five are tested elsewhere, with what else must hold then; of the last one other ranks start again.
NOT_ENDED_AT_ONCE = ("ray", "multiprocessing", "submitit", "hydra", "deepspeed-ssh", "torchrun-elastic")
FOUND_BY = {"srun": "srun", "pmix": "srun", "fabric": "srun", "mpirun": "mpirun"}  # whose variables; else torchrun's
BY_DEFAULT = {
    (2, 1): (),
    # With torch's MPI, and with groups of the launchers' own. deepspeed-srun is in test_mpi_and_deepspeed.py, hydra in
    # test_submitit.py, torchrun-elastic in test_elastic.py, multiprocessing in test_make_launchers.py.
    (2, 2): ("pmix", "mpirun", "fabric", "accelerate"),
    (2, 8): ("srun",),  # torchrun's 16 ranks train on digits, in test_torchrun.py
    (4, 2): (),
}


def case(*values: object, default: bool):
    """Parameters of a test; without ``default`` the test is of the matrix."""
    marks = [] if default else [pytest.mark.matrix]
    return pytest.param(*values, marks=marks)


SIZES = [case(*size, name, default=name in names) for size, names in BY_DEFAULT.items() for name in LAUNCHERS]
ENDED = [case(name, default=name in MECHANISMS) for name in LAUNCHERS if name not in NOT_ENDED_AT_ONCE]


@pytest.fixture(autouse=True)
def pmix_if_asked(request, slurm_cluster):
    """Tests of pmix are skipped where Slurm has none."""
    if "pmix" in request.node.name:
        jobs.require_pmix(slurm_cluster)


@pytest.mark.parametrize(("nodes", "per_node", "name"), SIZES)
def test_every_rank_is_there_once_and_where_slurm_says(slurm_cluster, nodes, per_node, name):
    launcher = LAUNCHERS[name]
    nodes = 1 if launcher.one_node else nodes
    proof = launchers.prove(slurm_cluster, launcher, nodes, per_node)
    assert len(proof.placed) == nodes * per_node
    backend = "mpi" if launcher.name in ("pmix", "mpirun") else "gloo"
    assert f"; backend {backend} on cpu" in proof.log
    assert found_by(name, proof.log) == nodes * per_node
    if not launcher.by_slurm:  # Slurm ends what Slurm started
        assert jobs.left_on(slurm_cluster, nodes) == []


def found_by(name: str, log: str) -> int:
    """How many ranks found themselves by the variables that the launcher sets."""
    return log.count(f'"launcher": "{FOUND_BY.get(name, "torchrun")}"')


@pytest.mark.parametrize("name", ENDED)
def test_a_rank_that_fails_ends_the_job_as_failed(slurm_cluster, name, failing):
    with pytest.raises(JobFailed, match=r"ended FAILED, exit code [1-9]"):
        launchers.start(slurm_cluster, LAUNCHERS[name].command(2, 1, (failing,)))


ACCELERATOR = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
accelerator.print("gathered", ranks, accelerator.device)
accelerator.end_training()
"""


def test_an_ordinary_accelerate_program_is_one_world(slurm, pod_workspace):
    """On CPUs an Accelerator() finds out in ways of its own what it is part of."""
    (pod_workspace / "runs" / "ordinary.py").write_text(ACCELERATOR)
    job = slurm.run("--gpus-per-node=2", "--cpus-per-task=2", "launchers/accelerate.sbatch", "runs/ordinary.py")
    assert "gathered [0, 1, 2, 3] cpu" in job.stdout


@pytest.fixture(scope="module")
def program(pod_of_all, pod_workspace) -> tuple[str, ...]:
    """Some steps of training, by four ranks."""
    return launchers.training_program(data.text(pod_of_all, str(pod_workspace / TEXT)), ranks=4)


@pytest.fixture(scope="module")
def loss_by_srun(pod_of_all, program) -> float:
    return launchers.train(pod_of_all, LAUNCHERS["srun"], 4, 1, program)


@pytest.mark.parametrize("name", [case(name, default=name in MECHANISMS) for name in LAUNCHERS if name != "srun"])
def test_the_losses_are_the_same_under_all_and_every_rank_is_where_slurm_says(
    slurm_cluster, pod_workspace, name, program, loss_by_srun
):
    """On how many nodes four ranks are makes no difference to the sums."""
    launcher = LAUNCHERS[name]
    nodes = 1 if launcher.one_node else 4 if name in MECHANISMS else 2
    job_id, placed, log = launchers.run_program(slurm_cluster, launcher, nodes, 4 // nodes, program)
    assert len(placed) == found_by(name, log) == 4
    assert jobs.summary(pod_workspace, job_id)["val_loss"] == loss_by_srun
    if not launcher.by_slurm:
        assert jobs.left_on(slurm_cluster, nodes) == []
