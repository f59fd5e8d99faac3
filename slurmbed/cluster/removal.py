"""Removing a cluster, and what its daemons printed last."""

from collections.abc import Callable

from slurmbed.engine.client import Engine
from slurmbed.engine.compose import Compose
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError
from slurmbed.process import last_lines
from slurmbed.wait import Pending, wait_until

UNUSED_LOOKS = 10  # in a row, half a second apart or more, that find a network alone, with nothing connected to it


def remove(
    engine: Engine, compose: Compose, look: Callable[[], Snapshot], say: Callable[[str], None], looks: int = 1
) -> None:
    """Remove containers, volumes and network.

    Docker 20.10 may go on counting a container that was being restarted when it was removed. Then it refuses to remove
    the network until it is restarted itself. That hinders nothing, `up` uses the network again: so it is no error.

    Args:
        say: hears of a network that Docker keeps although nothing is connected to it.
        looks: number of looks in a row, half a second apart, that must find nothing. An engine may still create a
            container after the client that asked for it was killed.
    """
    empty = unused = 0

    def check() -> None:
        nonlocal empty, unused
        removed = compose.by_name("down", "--volumes", "--remove-orphans", "--timeout", "2", timeout=300)
        snapshot = look()
        left, networks = snapshot.leftovers, snapshot.networks
        empty = 0 if left else empty + 1
        nothing_else = len(left) == len(networks) > 0
        unused = unused + 1 if nothing_else and not any(map(engine.containers_on, networks)) else 0
        if unused == UNUSED_LOOKS:
            say(
                f"Docker does not remove the network {', '.join(networks)}, although no container is connected to it. "
                "It does no harm; it can be removed when Docker has been restarted"
            )
        elif empty < looks:
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
