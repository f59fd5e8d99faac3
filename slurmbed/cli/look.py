"""Commands that look at clusters."""

import time
from dataclasses import asdict
from pathlib import Path

import click

from slurmbed.cli.console import console, print_json, say, show_columns, show_nodes
from slurmbed.cli.options import with_settings
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.listing import Listed, clusters
from slurmbed.cluster.settings import Settings
from slurmbed.errors import UsageError
from slurmbed.project import command

DAY = 24 * 3600  # seconds
HEADINGS = ("NAME", "OWNER", "STATE", "NODES", "SLURM", "AGE", "WORKSPACE")


@click.command()
@with_settings()
@click.option("--json", "as_json", is_flag=True, help="print nodes and jobs as JSON")
def status(settings: Settings, as_json: bool) -> None:
    """Show nodes and jobs.

    \b
    slurmbed status
    slurmbed status --json | jq '.nodes[].state'
    """
    cluster = Cluster(settings, say)
    cluster.require_running()
    nodes = cluster.slurm.nodes()
    if as_json:
        jobs = [asdict(job) for job in cluster.slurm.all_jobs() if not job.is_over]
        print_json({"name": cluster.name, "nodes": [asdict(node) for node in nodes], "jobs": jobs})
        return
    show_nodes(cluster.name, nodes)
    console.print(cluster.slurm.runner(["squeue"]).check().stdout.rstrip(), markup=False, highlight=False)


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="print them as JSON")
def list_clusters(as_json: bool) -> None:
    """Show all clusters of this Docker engine, whoever made them.

    \b
    slurmbed list
    slurmbed list --json | jq -r '.[].name'
    """
    cluster = Cluster()
    cluster.require_engine()
    found = clusters(cluster.snapshot)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        say(f"there is no cluster; create one: {command('up')}")
        return
    show_columns([HEADINGS, *map(row, found)])


def row(cluster: Listed) -> tuple[str, ...]:
    age = "" if cluster.created is None else describe_age(time.time() - cluster.created)
    nodes, workspace = str(cluster.nodes or ""), str(cluster.workspace or "")
    return cluster.name, cluster.owner, cluster.state, nodes, cluster.slurm, age, workspace


def describe_age(seconds: float) -> str:
    """An age as `docker ps` gives it, in the largest unit of which there is one: 3 h."""
    for unit, size in (("d", DAY), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


@click.command()
@with_settings()
@click.option("--service", default="", help="one service, like slurmctld or node-1 [default: all]")
@click.option("--follow", is_flag=True, help="keep printing new lines")
def logs(settings: Settings, service: str, follow: bool) -> None:
    """Show what the daemons print.

    \b
    slurmbed logs
    slurmbed logs --service slurmctld --follow
    """
    cluster = Cluster(settings, say)
    cluster.require()
    arguments = ["logs", "--tail", "50", *(["--follow"] if follow else []), *([service] if service else [])]
    if not cluster.compose.by_name(*arguments, timeout=DAY, capture=False).ok:
        services = ", ".join(sorted(cluster.snapshot.services))
        raise UsageError(f"no logs of {service or cluster.name}", f"services: {services}")


@click.command("export-logs")
@with_settings()
@click.argument("folder", type=click.Path(path_type=Path))
def export_logs(settings: Settings, folder: Path) -> None:
    """Write the logs of all daemons and jobs, and the state of Slurm and Docker, to FOLDER. It has no secrets.

    \b
    slurmbed export-logs bundle && tar -czf bundle.tar.gz bundle
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty", "name a new folder")
    cluster = Cluster(settings, say)
    cluster.require()
    written = cluster.export_logs(folder)
    console.print(f"wrote {len(written)} files: {folder}", soft_wrap=True, highlight=False)
