"""What each word that scontrol prints as a node's state means. scripts/wait-ready gets the same table.

https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
"""

from collections.abc import Iterable

IDLE, BUSY, WAITS, NEVER = range(4)
"""IDLE: accepts jobs now. BUSY: in service, but occupied. WAITS: expected to return by itself. NEVER: needs an
administrator.
"""

NODE_STATES = {
    **dict.fromkeys(("IDLE", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"), IDLE),
    # With jobs, kept for one (PLANNED, RESERVED, BLOCKED), in a reservation for maintenance, to be rebooted later.
    **dict.fromkeys(("ALLOCATED", "MIXED", "COMPLETING", "PERFCTRS", "PLANNED", "RESERVED", "BLOCKED"), BUSY),
    **dict.fromkeys(("MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_CANCELED", "UNDRAIN"), BUSY),
    # Until its slurmd registers. That also ends DOWN, even if set by an administrator: ReturnToService=2.
    **dict.fromkeys(("DOWN", "UNKNOWN", "FUTURE", "NOT_RESPONDING", "RESUME", "REBOOT_ISSUED"), WAITS),
    **dict.fromkeys(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN"), WAITS),
    **dict.fromkeys(("POWERING_UP", "POWER_UP"), WAITS),
    # Out of service by an administrator, or by Slurm after a fault; with less than its record says; without slurmd.
    **dict.fromkeys(("DRAIN", "FAIL", "ERROR", "INVALID_REG", "INVALID", "EXTERNAL"), NEVER),
}


def outlook(flags: Iterable[str]) -> int:
    """The worst meaning among a node's state and flags. An unknown word counts as WAITS."""
    return max(NODE_STATES.get(flag, WAITS) for flag in flags)
