"""Jobs that take all they can get: a fork bomb and a memory hog. Others work on, and the node comes back."""

from collections.abc import Callable
from pathlib import Path

from harness import engine
from harness.commands import make
from slurmbed import BatchJob
from slurmbed.wait import Pending, wait_until

# Threads count as processes do, and cost the test's machine least.
BOMB = """
import os, threading, time
threading.stack_size(64 << 10)
wait = threading.Event()
try:
    for started in range(20000):
        threading.Thread(target=wait.wait, daemon=True).start()
except RuntimeError as full:
    print(f"stopped after {started} threads: {full}", flush=True)
while not os.path.exists("runs/enough"):  # until the test has seen it; the job's time limit ends it otherwise
    time.sleep(0.2)
"""
HOG = """
held = []
while True:
    held.append(b"x" * (16 << 20))
"""


def others_work(cluster) -> None:
    """On the node without the greedy job, and for those who look on."""
    shown = make("status", f"NAME={cluster.name}")
    assert "node-1" in shown.stdout, shown.stderr
    ran = cluster.slurm.runner(["srun", "--nodelist=node-1", "--mem=100", "hostname"]).check()
    assert ran.stdout == "node-1\n"


def wait_until_recovered(cluster) -> None:
    """The node's slurmd, or its container, may have ended and started again; jobs run there all the same."""

    def check() -> None:
        node = cluster.slurm.nodes()[1]
        if engine.states(cluster.name)["node-2"] != "running" or not node.is_idle:
            raise Pending(node.state)
        ran = cluster.slurm.runner(["timeout", "60", "srun", "--nodelist=node-2", "hostname"])
        if ran.stdout != "node-2\n":
            raise Pending(ran.output)

    wait_until(check, what="node-2 works", timeout=240)


def greedy(submit: Callable[..., BatchJob], workspace: Path, program: str) -> BatchJob:
    """A job that has all of node-2."""
    (workspace / "greedy.py").write_text(program)
    words = ("--nodelist=node-2", "--exclusive", "--mem=0", "--no-requeue")
    return submit(*words, "--wrap", "exec python3 greedy.py")


def test_a_fork_bomb_has_at_most_its_node(slurm_cluster, workspace, slurm_submit):
    started = int(greedy(slurm_submit, workspace, BOMB).wait_for_output("stopped after").split()[2])
    assert 7000 < started < 8192
    others_work(slurm_cluster)
    (workspace / "runs" / "enough").touch()  # its slurmd could start no thread to end the job
    wait_until_recovered(slurm_cluster)


def test_a_memory_hog_has_at_most_its_node(slurm_cluster, workspace, slurm_submit):
    job = greedy(slurm_submit, workspace, HOG)
    assert job.wait_until_over().state != "COMPLETED"  # by the kernel, or by Slurm
    others_work(slurm_cluster)
    wait_until_recovered(slurm_cluster)
