"""All clusters of an engine, as their labels tell. Pure: a snapshot in, values out."""

from dataclasses import dataclass, replace
from pathlib import Path

from slurmbed.cluster.plan import choices_so_far
from slurmbed.engine.overlay import OURS
from slurmbed.engine.snapshot import PROJECT_LABEL, Snapshot


@dataclass(frozen=True)
class Listed:
    """One cluster; ``created`` in seconds since the epoch, None if only volumes are left."""

    name: str
    owner: str
    state: str
    nodes: int
    slurm: str
    created: int | None
    clone: Path | None
    workspace: Path | None


def clusters(snapshot: Snapshot) -> list[Listed]:
    """The clusters of the engine by name."""
    everything = [*(each.labels for each in snapshot.all_containers), *(each.labels for each in snapshot.named)]
    names = {labels.get(PROJECT_LABEL, "") for labels in everything if labels.get(OURS) == "cluster"}
    seen = (replace(snapshot, name=name) for name in sorted(filter(None, names)))
    return [listed(each) for each in seen if each.exists and not each.strangers]


def listed(cluster: Snapshot) -> Listed:
    choices = choices_so_far(cluster)
    has_containers = bool(cluster.containers)
    return Listed(
        name=cluster.name,
        owner=choices.owner,
        state="running" if cluster.is_running else "stopped" if has_containers else "only volumes",
        nodes=cluster.highest_node,
        slurm=choices.slurm if has_containers else "",
        created=min((each.created for each in cluster.containers), default=None),
        clone=cluster.made_from,
        workspace=choices.workspace if has_containers else None,
    )
