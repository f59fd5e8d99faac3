"""Training that is interrupted, in every way that Slurm knows: it resumes, with the losses of an uninterrupted run."""

import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import TEXT
from harness.jobs import wait_for_file
from slurmbed import BatchJob
from slurmbed.wait import Pending, wait_until

SIZE = ("--layers=1", "--channels=32", "--heads=4", "--block-size=16", "--batch-size=8", "--sample-length=20")
OFTEN = ("--eval-every=1000000", "--checkpoint-every=50", "--log-every=20")
STEPS = "600"


@pytest.fixture
def slurm_cluster(faulty):
    return faulty


@pytest.fixture
def slurm(slurm_cluster):
    return slurm_cluster.slurm


class Training:
    """A job of train.py on two nodes, and what it has written so far."""

    def __init__(self, cluster, *options, steps=STEPS):
        self.cluster = cluster
        words = ("--text", TEXT, *SIZE, *OFTEN, "--steps", steps)
        self.job = BatchJob(cluster.slurm, cluster.slurm.submit(*options, "jobs/ddp.sbatch", *words))
        self.id = self.job.id
        self.runs = cluster.workspace() / "runs"

    def log(self) -> str:
        file = self.runs / f"{self.id}.log"
        return file.read_text() if file.exists() else ""

    def wait(self) -> None:
        self.job.wait(600)

    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        file = self.runs / self.id / "metrics.jsonl"
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return {line["step"]: line["train_loss"] for line in map(json.loads, lines)}

    def wait_for_step(self, least: int) -> None:
        wait_for_file(self.cluster, self.id, lambda: self.reached() >= least, self.log, timeout=180)

    def reached(self) -> int:
        """The last step that it has written down; 0 if there is none yet."""
        return max(self.losses(), default=0) if (self.runs / self.id / "metrics.jsonl").exists() else 0

    def wait_resumed(self, after: int = -1, timeout: float = 240) -> int:
        """The step that it resumed at, later than ``after``."""

        def check() -> int:
            job = self.cluster.slurm.job(self.id)
            lines = [line for line in self.log().splitlines() if line.startswith("resumed from ")]
            resumed = [step for line in lines if (step := int(line.rpartition(" ")[2])) > after]
            if not resumed:
                raise Pending(f"{job.state} ({job.reason})\n{self.log()[-1500:]}")
            return resumed[-1]

        return wait_until(check, what=f"job {self.id} resumes", timeout=timeout, interval=0.5)

    def restarts(self) -> str:
        return self.show("Restarts")

    def show(self, field: str) -> str:
        shown = self.cluster.slurm.runner(["scontrol", "show", "job", self.id]).check().stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)[field]


@pytest.fixture(scope="module")
def straight(faulty_of_all) -> dict[int, float]:
    """The losses of a run that nothing interrupts."""
    job = Training(faulty_of_all)
    job.wait()
    return job.losses()


def test_a_signal_and_then_a_requeue_from_outside_save_requeue_and_resume(slurm_cluster, slurm, straight):
    """The signal as Slurm sends it before a job's time is over, the requeue as preemption does it."""
    job = Training(slurm_cluster)
    job.wait_for_step(60)
    slurm.runner(["scancel", "--signal=USR1", job.id]).check()
    first = job.wait_resumed()
    job.wait_for_step(first + 60)
    slurm.runner(["scontrol", "requeue", job.id]).check()
    second = job.wait_resumed(after=first)
    job.wait()
    assert f"SIGUSR1 at step {first}: saved " in job.log()
    assert f"SIGTERM at step {second}: saved " in job.log()
    assert job.restarts() == "2"
    assert job.losses() == straight


def nothing_to_tell(cluster) -> None:
    """slurmctld tells a dead node again and again to end the job. If the node were back, that would end the job's next
    run there.
    """
    shown = cluster.slurm.runner(["sdiag"]).check().stdout
    counts = re.findall(r"^Agent (?:queue size|count):\s+(\d+)$", shown, re.MULTILINE)
    if len(counts) != 2 or any(map(int, counts)):
        raise Pending(f"messages to be sent, and being sent: {counts}")


@pytest.mark.parametrize("node", ["node-2", pytest.param("node-1", marks=pytest.mark.matrix)])
def test_a_node_that_dies_requeues_and_resumes(slurm_cluster, slurm, slurm_faults, straight, node):
    """node-1 has the batch script and rank 0. In test_life.py a job is queued again that has lost that node."""
    job = Training(slurm_cluster)
    job.wait_for_step(75)
    slurm_faults.kill(node)
    slurm.wait(job.id, 120, until=lambda job: job.state != "RUNNING")
    wait_until(partial(nothing_to_tell, slurm_cluster), what="slurmctld has given the node up", timeout=180)
    slurm_faults.heal()
    assert job.wait_resumed() % 50 == 0, "there was no time to save: it goes on from a checkpoint on the way"
    job.wait()
    assert job.losses() == straight


def test_the_time_limit_saves_requeues_and_resumes(slurm_cluster, straight):
    """Slurm may send the signal up to a minute early: 20 s after the start at the earliest, when the ranks listen. They
    are paused until it comes, so that the run does not end before.
    """
    job = Training(slurm_cluster, "--time=2", "--signal=B:USR1@40")
    job.wait_for_step(20)
    signal_ranks(slurm_cluster, "STOP")
    try:
        wait_until(partial(usr1_is_pending, slurm_cluster), what="Slurm's signal has reached both ranks", timeout=180)
    finally:
        signal_ranks(slurm_cluster, "CONT")
    at = job.wait_resumed()
    job.wait()
    assert f"SIGUSR1 at step {at}: saved " in job.log()
    assert job.losses() == straight


RANK = "^[^ ]*python3 train.py"  # not the srun that started it


def signal_ranks(cluster, name: str) -> None:
    """Send a signal to the rank on each node."""
    for node in ("node-1", "node-2"):
        engine.execute(cluster, node, ["pkill", f"-{name}", "--full", RANK]).check()


def usr1_is_pending(cluster) -> None:
    """Whether SIGUSR1 waits for each rank to go on, as /proc says in bits."""
    look = f"sed -n 's/^ShdPnd:\t//p' /proc/$(pgrep --full '{RANK}' | head -n 1)/status"
    for node in ("node-1", "node-2"):
        pending = engine.execute(cluster, node, ["bash", "-c", look]).check().stdout
        if not int(pending, 16) >> signal.SIGUSR1 - 1 & 1:
            raise Pending(f"{node}: {pending}")


def test_emulated_gpus_may_come_without_nvidia_smi(slurm):
    """A cluster made with NVIDIA_SMI=0, for programs that take its absence as their sign."""
    assert slurm.runner(["srun", "--gpus=1", "sh", "-c", "! command -v nvidia-smi"]).ok


def test_a_cancelled_job_stays_cancelled_and_has_saved(slurm_cluster):
    job = Training(slurm_cluster, steps="10000000")
    job.wait_for_step(20)
    job.job.cancel()
    assert job.job.wait_until_over().state == "CANCELLED"
    saved = [line for line in job.log().splitlines() if line.startswith("SIGTERM at step ")]
    assert saved, job.log()
    inside = saved[0].partition("saved ")[2]  # like /workspace/runs/1/checkpoints/..
    assert (slurm_cluster.workspace() / Path(inside).relative_to("/workspace")).exists()
