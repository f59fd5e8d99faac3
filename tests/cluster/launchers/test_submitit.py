"""What submitit and hydra's plugin for it do, on the pod: results, exceptions, going on after preemption, sweeps."""

import re

import pytest

from harness import engine
from harness.internals import parse_ranks

FEATURES = "launchers/submitit_features.py"


@pytest.fixture
def launch(slurm_cluster):
    """Run a Python launcher on the login node, as alice, to its end: a Result."""
    return lambda *words: engine.on_login(slurm_cluster, ("python3", *words), timeout=400)


def job_of(output: str) -> str:
    return re.search(r"^submitted job (\d+)", output, re.MULTILINE)[1]


def test_every_task_of_an_array_gives_its_own_result(slurm, launch):
    done = launch(FEATURES, "array").check()
    assert "results: [1, 4, 9, 16]" in done.stdout
    rows = [row.id for row in slurm.accounting(job_of(done.stdout))]
    assert sorted(rows) == [f"{job_of(done.stdout)}_{task}" for task in range(4)]


def test_an_exception_comes_back_with_the_jobs_traceback(slurm, launch):
    done = launch(FEATURES, "exception").check()
    assert "in divide" in done.stdout
    assert "ZeroDivisionError: division by zero" in done.stdout
    assert slurm.wait(job_of(done.stdout), 120).state == "FAILED"


def test_a_preempted_job_is_requeued_goes_on_and_is_right(launch):
    done = launch(FEATURES, "preempt").check()
    result = re.search(r"result: {'started': (\d+), 'total': (\d+), 'restarts': '1'}", done.stdout)
    assert int(result[1]) > 0
    assert int(result[2]) == sum(step**2 for step in range(60))


def test_a_rank_that_fails_ends_a_submitit_job_with_its_words(slurm, launch, failing):
    done = launch("launchers/submitit_job.py", "--ranks", "2", failing)
    assert done.returncode == 1
    assert "rank 1 gives up" in done.output
    assert slurm.wait(job_of(done.output), 120).state == "FAILED"


def test_a_sweep_is_a_job_for_each_configuration(launch):
    done = launch("launchers/hydra_submitit.py", "ranks=1", "seconds=0,1").check()
    sweep = re.split(r"^submitted job \d+_\d+$", done.stdout, flags=re.MULTILINE)[1:]
    assert [[rank.host for rank in parse_ranks(job)] for job in sweep] == [["node-1", "node-2"]] * 2
    sums = [int(re.search(r"(\d+) sum\(s\) over 2 rank\(s\): all right", job)[1]) for job in sweep]
    assert sums[0] == 1 < sums[1]


@pytest.mark.matrix  # hydra submits by submitit
def test_a_rank_that_fails_ends_hydras_job(slurm, launch, failing):
    done = launch("launchers/hydra_submitit.py", "ranks=2", f"program={failing}")
    assert done.returncode == 1
    assert "rank 1 gives up" in done.output
    assert slurm.wait(job_of(done.output), 120).state == "FAILED"
