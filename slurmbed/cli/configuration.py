"""`slurmbed config`: a configuration file, checked without an engine, and its schema for editors."""

import json
from pathlib import Path

import click

from slurmbed.cli.console import console
from slurmbed.cluster.host import gpu_names
from slurmbed.spec import load
from slurmbed.spec.schema import schema


@click.group()
def config() -> None:
    """Check a configuration file, or print its JSON schema.

    \b
    slurmbed config check cluster.yaml
    slurmbed config schema >cluster.schema.json
    """


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check FILE and report every mistake with its line. Needs no Docker engine.

    \b
    slurmbed config check cluster.yaml
    """
    spec = load.load(file, gpu_names)
    partitions = ", ".join(each.name for each in spec.partitions) or "main"
    console.print(f"{file}: nodes: {spec.size}; partitions: {partitions}", highlight=False, soft_wrap=True)


@config.command("schema")
def print_schema() -> None:
    """Print the JSON schema of a configuration file.

    \b
    slurmbed config schema >cluster.schema.json
    # yaml-language-server: $schema=cluster.schema.json    (first line of the file)
    """
    click.echo(json.dumps(schema(), indent=2))
