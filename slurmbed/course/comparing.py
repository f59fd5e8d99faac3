"""`make compare`: the strategies one after another, each alone on the cluster, and one report of all."""

import os
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course.report import Outcome, comparison, comparison_page
from slurmbed.course.training import Run, again_command, prepare_run, run_job


def compare(cluster: Cluster, console: Console, nodes: dict[str, int], steps: str, text: str) -> Path:
    """Run the strategies, ``nodes`` by name, on the same batches; returns the report's path.

    Raises:
        JobFailed, PlacementError: as ``training.train``, of the first strategy that does not end well.
    """
    words = prepare_run(cluster, console, steps, text)
    outcomes: list[Outcome] = []
    for name, count in nodes.items():
        console.rule(name)
        files, outcome = run_job(cluster, console, name, count, words)
        outcomes.append(outcome)
    show(console, outcomes)
    together = Run(cluster.workspace(), f"compare-{files.job_id}")
    together.set_earlier_aside()
    command = again_command("compare", f"STRATEGIES={','.join(nodes)}", steps=steps, text=text)
    page = comparison_page(outcomes, note(os.cpu_count() or 1), command)
    path = cluster.write(f"runs/{together.job_id}/report.html", page.encode())
    console.print(f"report: {path}", soft_wrap=True)
    return path


def note(cpus: int) -> str:
    """What to know before one compares their speed."""
    return (
        f"Every rank has a node of its own, but all nodes are containers on one machine of {cpus} CPUs: "
        "ranks beyond that many share them."
    )


def show(console: Console, outcomes: list[Outcome]) -> None:
    headings, rows = comparison(outcomes)
    # Eighty columns are enough for it this way, and narrower ones wrap the headings, not the figures.
    table = Table(title="the same batches by every strategy", box=box.SIMPLE_HEAD, padding=0)
    for number, heading in enumerate(headings):
        widest = max(len(row[number]) for row in rows)
        table.add_column(heading, justify="right" if number else "left", min_width=widest)
    for row in rows:
        table.add_row(*row)
    console.print(table)
