"""Where commands print: results on standard output, steps and errors on standard error."""

import json
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from slurmbed.slurm.records import Node

console = Console(soft_wrap=not sys.stdout.isatty())
errors = Console(stderr=True, soft_wrap=True)


def say(text: str) -> None:
    errors.print(text, style="dim", markup=False, highlight=False)


def show_nodes(name: str, nodes: Sequence[Node]) -> None:
    table = Table(title=f"cluster {name}")
    gres = ["GRES"] if any(node.gres for node in nodes) else []
    partitions = ["partitions"] if len({node.partitions for node in nodes}) > 1 else []
    for heading in ("node", "state", "CPUs", "memory", *gres, *partitions):
        table.add_column(heading, justify="right" if heading in ("CPUs", "memory") else "left")
    for node in nodes:
        state = "+".join([node.state, *(flag for flag in node.flags if flag not in ("CLOUD", "DYNAMIC_NORM"))])
        more = [*([node.gres] if gres else []), *([", ".join(node.partitions)] if partitions else [])]
        table.add_row(node.name, state.lower(), str(node.cpus), f"{node.memory} MiB", *more)
    console.print(table)


def show_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the first row as headings, for a reader or for awk."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for each in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(each, widths, strict=True)).rstrip())


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, default=str))
