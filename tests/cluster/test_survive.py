"""Training that is interrupted, in every way that Slurm knows: it resumes, with the losses of an uninterrupted run."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

SIZE = ("--layers=1", "--channels=32", "--heads=4", "--block-size=16", "--batch-size=8", "--sample-length=20")
OFTEN = ("--eval-every=1000000", "--checkpoint-every=50", "--log-every=20")
STEPS = "600"


class Training:
    """A job of train.py on two nodes, and what it has written so far."""

    def __init__(self, cluster, text, *options, steps=STEPS):
        self.cluster = cluster
        words = ("--text", text, *SIZE, *OFTEN, "--steps", steps)
        self.id = cluster.slurm.submit(*options, "jobs/ddp.sbatch", *words)
        self.runs = cluster.workspace() / "runs"

    def log(self) -> str:
        file = self.runs / f"{self.id}.log"
        return file.read_text() if file.exists() else ""

    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        file = self.runs / self.id / "metrics.jsonl"
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return {line["step"]: line["train_loss"] for line in map(json.loads, lines)}

    def wait_for_step(self, least: int, timeout: float = 120) -> None:
        def check() -> None:
            state = self.cluster.slurm.job(self.id).state
            reached = max(self.losses(), default=0) if (self.runs / self.id / "metrics.jsonl").exists() else 0
            if reached < least:
                raise Pending(f"{state}, step {reached}\n{self.log()[-1500:]}")

        wait_until(check, what=f"job {self.id} reaches step {least}", timeout=timeout)

    def wait_resumed(self, timeout: float = 240) -> int:
        """The step that it resumed at. A requeued job may not start for a while: it is told to start now."""

        def check() -> int:
            job = self.cluster.slurm.job(self.id)
            if job.state == "PENDING":
                self.cluster.slurm.runner(["scontrol", "update", f"JobId={self.id}", "StartTime=now"])
            resumed = [line for line in self.log().splitlines() if line.startswith("resumed from ")]
            if not resumed:
                raise Pending(f"{job.state} ({job.reason})\n{self.log()[-1500:]}")
            return int(resumed[-1].rpartition(" ")[2])

        return wait_until(check, what=f"job {self.id} resumes", timeout=timeout)

    def restarts(self) -> str:
        return self.show("Restarts")

    def show(self, field: str) -> str:
        shown = self.cluster.slurm.runner(["scontrol", "show", "job", self.id]).check().stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)[field]


@pytest.fixture(scope="module")
def straight(cluster, text) -> dict[int, float]:
    """The losses of a run that nothing interrupts."""
    job = Training(cluster, text)
    cluster.slurm.wait_completed(job.id, 240, log=job.log)
    return job.losses()


def test_a_signal_saves_requeues_and_resumes(cluster, text, straight):
    job = Training(cluster, text)
    job.wait_for_step(60)
    cluster.slurm.runner(["scancel", "--signal=USR1", job.id]).check()
    at = job.wait_resumed()
    cluster.slurm.wait_completed(job.id, 240, log=job.log)
    assert f"SIGUSR1 at step {at}: saved " in job.log()
    assert job.restarts() == "1"
    assert job.losses() == straight


def test_a_requeue_from_outside_as_preemption_does_it(cluster, text, straight):
    job = Training(cluster, text)
    job.wait_for_step(60)
    cluster.slurm.runner(["scontrol", "requeue", job.id]).check()
    at = job.wait_resumed()
    cluster.slurm.wait_completed(job.id, 240, log=job.log)
    assert f"SIGTERM at step {at}: saved " in job.log()
    assert job.losses() == straight


def nothing_to_tell(cluster) -> None:
    """slurmctld tells a dead node again and again to end the job. If the node were back, that would end the job's next
    run there.
    """
    shown = cluster.slurm.runner(["sdiag"]).check().stdout
    counts = re.findall(r"^Agent (?:queue size|count):\s+(\d+)$", shown, re.MULTILINE)
    if len(counts) != 2 or any(map(int, counts)):
        raise Pending(f"messages to be sent, and being sent: {counts}")


@pytest.mark.parametrize("node", ["node-2", "node-1"])
def test_a_node_that_dies_requeues_and_resumes(cluster, text, straight, node):
    """node-1 has the batch script and rank 0."""
    job = Training(cluster, text)
    job.wait_for_step(75)
    name = cluster.compose.container_name(node)
    run(["docker", "kill", name], timeout=60).check()
    try:
        cluster.slurm.wait(job.id, 120, until=lambda job: job.state != "RUNNING")
        wait_until(partial(nothing_to_tell, cluster), what="slurmctld has given the node up", timeout=180)
    finally:
        run(["docker", "start", name], timeout=60).check()
    cluster.readiness.wait_ready(2)
    assert job.wait_resumed() % 50 == 0, "there was no time to save: it goes on from a checkpoint on the way"
    cluster.slurm.wait_completed(job.id, 240, log=job.log)
    assert job.losses() == straight


def test_the_time_limit_saves_requeues_and_resumes(cluster, text):
    """Slurm may send the signal up to a minute early: 20 s after the start at the earliest, when the ranks listen. How
    far a run comes until then is not known: both end when enough is there.
    """
    steps, job = "10000000", None
    try:
        job = Training(cluster, text, "--time=2", "--signal=B:USR1@40", steps=steps)
        at = job.wait_resumed(timeout=300)
        job.wait_for_step(at + 100)
    finally:
        cluster.slurm.cancel(job.id)
    cluster.slurm.wait(job.id, 60)
    assert f"SIGUSR1 at step {at}: saved " in job.log()
    other = Training(cluster, text, steps=steps)
    try:
        other.wait_for_step(at + 100, timeout=300)
    finally:
        cluster.slurm.cancel(other.id)
    expected = other.losses()
    found = {step: loss for step, loss in job.losses().items() if step in expected}
    assert max(found) > at
    assert found == {step: expected[step] for step in found}


def test_a_cancelled_job_stays_cancelled_and_has_saved(cluster, text):
    job = Training(cluster, text, steps="10000000")
    job.wait_for_step(20)
    cluster.slurm.cancel(job.id)
    assert cluster.slurm.wait(job.id, 60).state == "CANCELLED"
    saved = [line for line in job.log().splitlines() if line.startswith("SIGTERM at step ")]
    assert saved, job.log()
    assert Path(saved_path(saved[0], cluster)).exists()


def saved_path(line: str, cluster) -> Path:
    """The checkpoint of a line like `SIGTERM at step 7: saved /workspace/runs/1/...`, on the host."""
    inside = line.partition("saved ")[2]
    return cluster.workspace() / Path(inside).relative_to("/workspace")
