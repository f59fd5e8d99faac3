"""`make bench`: cold and warm `up` beside a bare `docker compose up` of as many idle containers, in one run."""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import DEFAULT_SLURM, DEFAULT_TORCH, Settings
from slurmbed.process import Result, run

ROUNDS = 3
NODES = 2
CONTAINERS = NODES + 4


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def bare(name: str) -> Callable[[str], Result]:
    """``docker compose`` on as many containers of the same image that only sleep."""
    service = {"image": f"slurmbed-node:{DEFAULT_SLURM}-{DEFAULT_TORCH}", "init": True, "command": ["sleep", "3600"]}
    project = json.dumps({"services": {f"idle-{i}": service for i in range(CONTAINERS)}})
    argv = ["docker", "compose", "-p", name, "-f", "-"]
    return lambda words: run([*argv, *words.split()], timeout=300, stdin=project).check()


def main(args: argparse.Namespace) -> None:
    """Alternate the three and print medians and ratios to the bare start."""
    name = f"{args.name or 'slurmbed'}-bench"
    console = Console()
    cluster = Cluster(Settings(name=name, nodes=str(NODES)), lambda _: None)
    idle = bare(f"{name}-idle")
    taken: dict[str, list[float]] = {"bare compose up": [], "cold up (nothing there)": [], "warm up (after down)": []}
    try:
        cluster.build(cluster.plan())
        for _ in range(ROUNDS):
            taken["bare compose up"].append(seconds(partial(idle, "up --detach")))
            idle("down --volumes --timeout 1")
            taken["cold up (nothing there)"].append(seconds(cluster.up))
            cluster.down()
            taken["warm up (after down)"].append(seconds(cluster.up))
            cluster.clean()
    finally:
        idle("down --volumes --timeout 1")
        cluster.clean()
    table = Table(title=f"{CONTAINERS} containers, median of {ROUNDS} (smallest to largest)")
    for heading in ("what", "seconds", "of the bare start"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    base = median(taken["bare compose up"])
    for what, values in taken.items():
        spread = f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        table.add_row(what, spread, f"{median(values) / base:.1f} x")
    console.print(table)
