"""Commands that look at a cluster, or into it."""

import os
import sys

import click

from slurmbed.cli.console import console, say, show_nodes
from slurmbed.cli.options import with_settings
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.readiness import USER
from slurmbed.cluster.settings import Settings
from slurmbed.errors import UsageError

DAY = 24 * 3600  # seconds


@click.command()
@with_settings()
def status(settings: Settings) -> None:
    """Show nodes and jobs."""
    cluster = Cluster(settings, say)
    cluster.require_running()
    show_nodes(cluster.name, cluster.slurm.nodes())
    console.print(cluster.slurm.runner(["squeue"]).check().stdout.rstrip(), markup=False, highlight=False)


@click.command()
@with_settings()
@click.option("--user", default=USER, show_default=True, help="alice, bob or root")
def shell(settings: Settings, user: str) -> None:
    """Open a shell on the login node."""
    cluster = Cluster(settings, say)
    cluster.require_running()
    options = ("--interactive", *(["--tty"] if sys.stdin.isatty() else []))
    argv = cluster.exec_argv(["bash", "-l"], user, options)
    os.execvp(argv[0], argv)


@click.command()
@with_settings()
@click.option("--service", default="", help="one service, like slurmctld or node-1 [default: all]")
@click.option("--follow", is_flag=True, help="go on as new lines come")
def logs(settings: Settings, service: str, follow: bool) -> None:
    """Show what the daemons print."""
    cluster = Cluster(settings, say)
    cluster.require()
    arguments = ["logs", "--tail", "50", *(["--follow"] if follow else []), *([service] if service else [])]
    if not cluster.compose.by_name(*arguments, timeout=DAY, capture=False).ok:
        services = ", ".join(sorted(cluster.snapshot.services))
        raise UsageError(f"no logs of {service or cluster.name}", f"services: {services}")
