"""`make compare`: train by several strategies, one after another, on the same batches, and write one report of all."""

import os
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course.runs import RunResult, unused_folder
from slurmbed.course.train import Asked, prepare_run, run_job
from slurmbed.project import command

HEADINGS = (
    *("strategy", "ranks", "nodes", "tokens/s", "time in collectives", "collectives a step", "carried by", "MB a rank"),
    *("validation loss", "difference to none"),
)


def compare(cluster: Cluster, console: Console, nodes: dict[str, int], asked: Asked) -> Path:
    """Train by each strategy, alone on the cluster; returns the report's path.

    Args:
        nodes: strategy -> number of nodes.

    Raises:
        JobFailed, PlacementError: as ``train.train``, of the first strategy that fails.
    """
    arguments = prepare_run(cluster, console, asked)
    results: list[RunResult] = []
    for name, count in nodes.items():
        console.rule(name)
        job_run, result = run_job(cluster, console, name, count, arguments)
        results.append(result)
    show(console, results)
    from slurmbed.course.report import comparison_page  # it imports matplotlib, which takes half a second

    again = command("compare", strategies=",".join(nodes), **asdict(asked))
    page = comparison_page(results, HEADINGS, rows(results), os.cpu_count() or 1, again)
    folder = unused_folder(cluster.workspace(), f"compare-{job_run.job_id}")
    path = cluster.write(f"{folder}/report.html", page.encode())
    console.print(f"report: {path}", soft_wrap=True)
    return path


def rows(results: list[RunResult]) -> list[list[str]]:
    """A row for each run, its cells as in HEADINGS; the last is empty if no run is of the strategy ``none``."""
    none_loss = next((each.summary["val_loss"] for each in results if each.strategy == "none"), None)
    return [
        [
            each.strategy,
            str(each.summary["world_size"]),
            str(each.nodes),
            f"{each.summary['tokens_per_s']:,.0f}",
            f"{each.summary['communication_share']:.0%}",
            str(sum(each.summary["collectives_per_step"].values())),
            each.transports,
            each.megabytes,
            f"{each.summary['val_loss']:.4f}",
            "" if none_loss is None else f"{each.summary['val_loss'] - none_loss:+.1e}",
        ]
        for each in results
    ]


def show(console: Console, results: list[RunResult]) -> None:
    """Print the table that compares the runs, in 80 columns."""
    compared = rows(results)
    table = Table(title="the same batches by every strategy", box=box.SIMPLE_HEAD, padding=0)
    for number, heading in enumerate(HEADINGS):
        # On a narrow terminal headings wrap, figures do not.
        widest = max(len(row[number]) for row in compared)
        table.add_column(heading, justify="right" if number else "left", min_width=widest)
    for row in compared:
        table.add_row(*row)
    console.print(table)
