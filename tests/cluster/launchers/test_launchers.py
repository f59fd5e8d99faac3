"""Every launcher of workspace/launchers: each rank once, on the node where Slurm says; the same losses under all.

`make test` trains under one launcher for each set of variables that tells a rank who it is. The other launchers sum,
here or in other files that are named below. A world that is only counted imports no torch. The rest, every launcher at
every size, has the mark `matrix`: `make test-launchers` runs that too.
"""

import pytest

from harness import jobs
from harness.clusters import TEXT
from slurmbed.course import data, launchers
from slurmbed.course.launchers import LAUNCHERS
from slurmbed.errors import JobFailed

# One launcher for each set of variables. Ray, DeepSpeed and submitit set torchrun's.
TRAINED_BY = ("srun", "torchrun", "mpirun")
# The first five are tested elsewhere, with what else must hold then; of the last one other ranks start again.
NOT_ENDED_AT_ONCE = ("ray", "multiprocessing", "submitit", "hydra", "deepspeed-ssh", "torchrun-elastic")
FOUND_BY = {"srun": "srun", "pmix": "srun", "fabric": "srun", "mpirun": "mpirun"}  # whose variables; else torchrun's
BY_DEFAULT = {
    (2, 1): (),
    # With groups of the launcher's own. pmix, mpirun, deepspeed-srun and deepspeed-ssh are in
    # test_mpi_and_deepspeed.py, ray in test_ray.py, hydra in test_submitit.py, torchrun-elastic in test_elastic.py,
    # multiprocessing in test_make_launchers.py, accelerate below.
    (2, 2): ("fabric",),
    (2, 8): (),
    (4, 2): (),
}
# A program for ranks that are counted, and exchange nothing.
ANNOUNCE = "from ranks import environment\nenvironment.announce(environment.read().record(''))\n"
COUNTED = [("srun", 2, 8), ("srun", 4, 2), ("torchrun", 2, 8), ("submitit", 2, 2)]


def case(*values: object, default: bool):
    """Parameters of a test; without ``default`` the test is of the matrix."""
    marks = [] if default else [pytest.mark.matrix]
    return pytest.param(*values, marks=marks)


SIZES = [case(*size, name, default=name in names) for size, names in BY_DEFAULT.items() for name in LAUNCHERS]
ENDED = [case(name, default=name in TRAINED_BY) for name in LAUNCHERS if name not in NOT_ENDED_AT_ONCE]


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


@pytest.mark.parametrize(("name", "nodes", "per_node"), COUNTED)
def test_ranks_are_counted_over_all_nodes(slurm_cluster, pod_workspace, name, nodes, per_node):
    (pod_workspace / "announce.py").write_text(ANNOUNCE)
    _, placed, log = launchers.run_program(slurm_cluster, LAUNCHERS[name], nodes, per_node, ("announce.py",))
    assert len(placed) == found_by(name, log) == nodes * per_node


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
from ranks import environment

environment.announce(environment.read().record(""))
accelerator = Accelerator()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
accelerator.print("gathered", ranks, accelerator.device)
accelerator.end_training()
"""


def test_an_ordinary_accelerate_program_is_one_world(slurm_cluster, pod_workspace):
    """On CPUs an Accelerator() finds out in ways of its own what it is part of."""
    (pod_workspace / "ordinary.py").write_text(ACCELERATOR)
    _, placed, log = launchers.run_program(slurm_cluster, LAUNCHERS["accelerate"], 2, 2, ("ordinary.py",))
    assert len(placed) == found_by("accelerate", log) == 4
    assert "gathered [0, 1, 2, 3] cpu" in log


@pytest.fixture(scope="module")
def program(pod_of_all, pod_workspace) -> tuple[str, ...]:
    """Some steps of training, by four ranks."""
    return launchers.training_program(data.text(pod_of_all, str(pod_workspace / TEXT)), ranks=4)


@pytest.fixture(scope="module")
def loss_by_srun(pod_of_all, program) -> float:
    return launchers.train(pod_of_all, LAUNCHERS["srun"], 4, 1, program)


@pytest.mark.parametrize("name", [case(name, default=name in TRAINED_BY) for name in LAUNCHERS if name != "srun"])
def test_the_losses_are_the_same_under_all_and_every_rank_is_where_slurm_says(
    slurm_cluster, pod_workspace, name, program, loss_by_srun
):
    """On how many nodes four ranks are makes no difference to the sums."""
    launcher = LAUNCHERS[name]
    nodes = 1 if launcher.one_node else 4 if name in TRAINED_BY else 2
    job_id, placed, log = launchers.run_program(slurm_cluster, launcher, nodes, 4 // nodes, program)
    assert len(placed) == found_by(name, log) == 4
    assert jobs.summary(pod_workspace, job_id)["val_loss"] == loss_by_srun
    if not launcher.by_slurm:
        assert jobs.left_on(slurm_cluster, nodes) == []
