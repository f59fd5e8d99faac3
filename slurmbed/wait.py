"""Bounded waiting for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

from slurmbed.errors import WaitTimeout

T = TypeVar("T")
BACKOFF = 0.05  # poll interval as a fraction of the time waited so far, capped at 1 s


class Pending(Exception):
    """Raised by a check that does not hold yet; its text is the status that a timeout reports."""


def wait_until(
    check: Callable[[], T],
    *,
    what: str,
    timeout: float,
    interval: float = 0.2,
    hint: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call ``check`` until it returns instead of raising Pending, and return what it returned.

    Args:
        what: a description of the condition, for the error.
        timeout: seconds; the check is made at least once.
        interval: shortest time between two checks, in seconds. It grows with the time waited, to at most 1 s.
        clock, sleep: for tests.

    Raises:
        WaitTimeout: with the last status. Any other exception of ``check`` passes through at once.
    """
    start = clock()
    while True:
        try:
            return check()
        except Pending as pending:
            waited = clock() - start
            if waited >= timeout:
                raise WaitTimeout(f"{what}: not after {timeout:g} s; last status: {pending}", hint) from None
        sleep(max(interval, min(waited * BACKOFF, 1)))
