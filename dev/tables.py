"""What benchmarks share: a stopwatch, and tables of medians and ranges beside one of the ways."""

import time
from collections.abc import Callable, Mapping
from statistics import median

from rich.table import Table

Taken = Mapping[str, list[float]]
"""What each way took, in each round."""


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def ratios(title: str, beside: str, taken: Taken) -> Table:
    """Seconds of each way, as multiples of those of the way ``beside``."""
    base = median(taken[beside])
    return table(title, "seconds", f"of {beside}", taken, 2, lambda value: f"{value / base:.2f} x")


def differences(title: str, beside: str, taken: Taken) -> Table:
    """Milliseconds of each way, and how many more than those of the way ``beside``."""
    base = median(taken[beside])
    return table(title, "milliseconds", f"over {beside}", taken, 0, lambda value: f"{value - base:+.0f}")


def table(title: str, unit: str, compared: str, taken: Taken, digits: int, compare: Callable[[float], str]) -> Table:
    shown = Table(title=f"{title}: median of {len(next(iter(taken.values())))} (smallest to largest)")
    for heading in ("what", unit, compared):
        shown.add_column(heading, justify="left" if heading == "what" else "right")
    for what, values in taken.items():
        middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
        shown.add_row(what, f"{middle} ({least} to {most})", compare(median(values)))
    return shown
