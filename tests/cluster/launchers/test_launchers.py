"""Every launcher of workspace/launchers: each rank once, on the node where Slurm says; the same losses under all."""

import io
import re

import pytest
from rich.console import Console

from slurmbed.course import data, launchers
from slurmbed.course.launchers import LAUNCHERS
from slurmbed.errors import JobFailed

# The first four are tested elsewhere, with what else must hold then; of the last two other ranks go on, or start again.
NOT_ENDED_AT_ONCE = ("ray", "multiprocessing", "submitit", "hydra", "deepspeed-ssh", "torchrun-elastic")
FOUND_BY = {"srun": "srun", "pmix": "srun", "fabric": "srun", "mpirun": "mpirun"}  # whose variables; else torchrun's
SIZES = [(2, 1), (2, 8), (4, 2)]


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize(("nodes", "per_node"), SIZES)
def test_every_rank_is_there_once_and_where_slurm_says(pod, name, nodes, per_node):
    launcher = LAUNCHERS[name]
    proof = launchers.prove(pod, launcher, 1 if launcher.one_node else nodes, per_node)
    assert len(proof.placed) == (1 if launcher.one_node else nodes) * per_node
    backend = "mpi" if launcher.name in ("pmix", "mpirun") else "gloo"
    assert f"; backend {backend} on cpu" in proof.log
    assert proof.log.count(f'"launcher": "{FOUND_BY.get(name, "torchrun")}"') == len(proof.placed)


def test_the_command_ends_with_a_table(pod):
    console = Console(file=io.StringIO(), width=120)
    launchers.run_all(pod, console, "multiprocessing")
    printed = console.file.getvalue()
    said = r"multiprocessing: 1 x 8 ranks, placement proved, \d+\.\d s to the first sum, loss \d\.\d{6}"
    assert re.search(said, printed)
    assert re.search(r"│ multiprocessing │ Python .* │ +\d+ │ nothing +│", printed)


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name not in NOT_ENDED_AT_ONCE])
def test_a_rank_that_fails_ends_the_job_as_failed(pod, name, failing):
    with pytest.raises(JobFailed, match=r"ended FAILED, exit code [1-9]"):
        launchers.start(pod, LAUNCHERS[name].command(2, 1, (failing,)))


ACCELERATOR = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
accelerator.print("gathered", ranks, accelerator.device)
accelerator.end_training()
"""


def test_an_ordinary_accelerate_program_is_one_world(pod_job, pod_workspace):
    """On CPUs an Accelerator() finds out in ways of its own what it is part of."""
    (pod_workspace / "runs" / "ordinary.py").write_text(ACCELERATOR)
    _, log = pod_job("--gpus-per-node=2", "--cpus-per-task=2", "launchers/accelerate.sbatch", "runs/ordinary.py")
    assert "gathered [0, 1, 2, 3] cpu" in log


@pytest.fixture(scope="module")
def training_words(pod_of_all) -> tuple[str, ...]:
    return launchers.training_program(data.text(pod_of_all), ranks=2)


@pytest.fixture(scope="module")
def loss_by_srun(pod_of_all, training_words) -> float:
    """Of two ranks: on how many nodes makes no difference to the sums."""
    return launchers.train(pod_of_all, LAUNCHERS["srun"], 2, 1, training_words)


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name != "srun"])
def test_the_losses_are_the_same_under_all(pod, name, training_words, loss_by_srun):
    launcher = LAUNCHERS[name]
    size = (1, 2) if launcher.one_node else (2, 1)
    assert launchers.train(pod, launcher, *size, training_words) == loss_by_srun
