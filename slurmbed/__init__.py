"""A real multi-node Slurm cluster on one machine.

from slurmbed import Cluster, Settings

cluster = Cluster(Settings(nodes=4))
cluster.up()
job = cluster.slurm.wait_completed(cluster.slurm.submit("--wrap", "srun hostname"), timeout=60)
cluster.clean()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurmbed.cluster.cluster import Cluster
    from slurmbed.cluster.faults import Faults
    from slurmbed.cluster.settings import Settings
    from slurmbed.errors import (
        CommandError,
        JobFailed,
        NotReady,
        PlacementError,
        SlurmbedError,
        UsageError,
        WaitTimeout,
    )
    from slurmbed.slurm.batch import BatchJob, assert_separate_nodes
    from slurmbed.slurm.client import Slurm
    from slurmbed.slurm.records import Job, Node

    __version__: str

PUBLIC = {
    "Cluster": "slurmbed.cluster.cluster",
    "Faults": "slurmbed.cluster.faults",
    "Settings": "slurmbed.cluster.settings",
    "Slurm": "slurmbed.slurm.client",
    **dict.fromkeys(("BatchJob", "assert_separate_nodes"), "slurmbed.slurm.batch"),
    "Job": "slurmbed.slurm.records",
    "Node": "slurmbed.slurm.records",
    **dict.fromkeys(
        ("CommandError", "JobFailed", "NotReady", "PlacementError", "SlurmbedError", "UsageError", "WaitTimeout"),
        "slurmbed.errors",
    ),
}
__all__ = [
    "BatchJob",
    "Cluster",
    "CommandError",
    "Faults",
    "Job",
    "JobFailed",
    "Node",
    "NotReady",
    "PlacementError",
    "Settings",
    "Slurm",
    "SlurmbedError",
    "UsageError",
    "WaitTimeout",
    "assert_separate_nodes",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: `slurmbed --help` needs none of them."""
    if name == "__version__":
        from importlib.metadata import version  # 30 ms

        return version("slurmbed")
    if name not in PUBLIC:
        raise AttributeError(f"module 'slurmbed' has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)
