"""What holds for every test of launchers."""

import pytest

from slurmbed.cluster import USER
from slurmbed.wait import Pending, wait_until


@pytest.fixture(autouse=True)
def idle_pod(pod):
    """A test leaves the pod idle, whatever became of its jobs: the next one's ranks are then on the first nodes."""
    yield
    pod.slurm.runner(["scancel", f"--user={USER}"]).check()

    def idle() -> None:
        if busy := [f"{node.name} {node.state}" for node in pod.slurm.nodes() if not node.is_idle]:
            raise Pending(", ".join(busy))

    wait_until(idle, what="the pod is idle", timeout=120)
