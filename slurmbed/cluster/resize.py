"""Node records in Slurm when a cluster shrinks: out of use before their containers go, deleted after."""

from collections.abc import Callable, Sequence

from slurmbed.process import Result
from slurmbed.slurm.client import Slurm
from slurmbed.slurm.records import Node
from slurmbed.wait import Pending, wait_until

AsRoot = Callable[[Sequence[str]], Result]


def nodes_above(nodes: Sequence[Node], count: int) -> str:
    """Names of the records with a higher number than the cluster is to have, as scontrol takes them."""
    return ",".join(each.name for each in nodes if int(each.name.rpartition("-")[2]) > count)


def retire_nodes_above(slurm: Slurm, as_root: AsRoot, count: int) -> None:
    """Take nodes out of use: slurmctld ends and requeues their jobs."""
    if names := nodes_above(slurm.nodes(), count):
        as_root(["scontrol", "update", f"NodeName={names}", "State=DOWN", "Reason=removed"]).check()


def delete_nodes_above(nodes: Sequence[Node], as_root: AsRoot, count: int, say: Callable[[str], None]) -> bool:
    """Delete the records of nodes whose containers are gone. Returns True if there were any.

    Raises:
        WaitTimeout: slurmctld still refuses after a minute.
    """
    names = nodes_above(nodes, count)
    if not names:
        return False
    say(f"removing {names}")

    def check() -> None:
        deleted = as_root(["scontrol", "delete", f"NodeName={names}"])
        if not deleted.ok:
            raise Pending(deleted.output.strip())

    wait_until(check, what=f"deleting {names}", timeout=60)
    return True
