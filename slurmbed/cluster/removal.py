"""Removing a cluster, and what its daemons printed last."""

from collections.abc import Callable

from slurmbed.engine.client import Engine
from slurmbed.engine.compose import Compose
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError
from slurmbed.process import last_lines
from slurmbed.wait import Pending, wait_until


def remove(compose: Compose, look: Callable[[], Snapshot], looks: int = 1) -> None:
    """Remove containers, volumes and network.

    Args:
        looks: number of looks in a row, half a second apart, that must find nothing. An engine may still create a
            container after the client that asked for it was killed.
    """
    empty = 0

    def check() -> None:
        nonlocal empty
        removed = compose.by_name("down", "--volumes", "--remove-orphans", "--timeout", "2", timeout=300)
        left = look().leftovers
        empty = 0 if left else empty + 1
        if empty < looks:
            raise Pending(f"not yet removed: {', '.join(left)}; {last_lines(removed.stderr, 1).strip()}")

    wait_until(check, what=f"removing {compose.project}", timeout=600, interval=0.5)


def diagnosis(engine: Engine, snapshot: Snapshot) -> str:
    """``sinfo -R`` and the last lines of every daemon."""
    parts = []
    slurmctld = snapshot.services.get("slurmctld")
    if slurmctld and slurmctld.is_running:
        try:
            reasons = engine.exec(slurmctld.name, ["sinfo", "-R"], timeout=5).output
        except SlurmbedError as error:  # it may have ended just now
            reasons = error.reason
        parts.append("sinfo -R:\n" + last_lines(reasons))
    for each in snapshot.containers:
        parts.append(f"{each.service} ({each.status}):\n" + last_lines(engine.logs(each.name, 8)))
    return "\n".join(parts)
