"""Commands that make, change and remove a cluster."""

import shutil
import sys
from pathlib import Path

import click
from rich.table import Table

from slurmbed import project
from slurmbed.cli.console import console, say, show_nodes
from slurmbed.cli.options import MADE_WITH, with_settings
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Settings
from slurmbed.errors import UsageError


@click.command()
@with_settings(f"nodes {MADE_WITH} gpus config rest containers ssh_port workspace mount")
@click.option("--timeline", is_flag=True, help="print where the time went")
def up(settings: Settings, timeline: bool) -> None:
    """Start the cluster and wait until it is ready.

    Ready means: all nodes work, a job ran on them as an ordinary user, and accounting shows that job. For options that
    are not given, an existing cluster keeps its values, and a new cluster gets the defaults.

    \b
    slurmbed up --nodes 4 --cpus 2 --memory 2G
    slurmbed up --config clusters/campus.yaml --name campus
    """
    cluster = Cluster(settings, say)
    show_nodes(cluster.name, cluster.up())
    port = cluster.snapshot.services["login"].ssh_port
    train, env, shell = (project.command(each, name=cluster.name) for each in ("train", "env", "shell"))
    jobs = train if project.IS_CLONE else f'eval "$({env})"; sbatch'
    ssh = f"ssh -p {port} {cluster.user}@127.0.0.1"
    console.print(f"submit jobs: {jobs} | a shell: {shell} | ssh: {ssh}", highlight=False, soft_wrap=True)
    if registry := cluster.choices().registry_port:
        console.print(f"images for srun --container-image: docker push localhost:{registry}/NAME", highlight=False)
    if timeline:
        show_timeline(cluster.timeline)


def show_timeline(steps: list[tuple[str, float]]) -> None:
    """A table of steps, each with its seconds."""
    table = Table(title="where the time went")
    table.add_column("step")
    table.add_column("seconds", justify="right")
    for name, seconds in steps:
        table.add_row(name, f"{seconds:.2f}")
    console.print(table)


@click.command()
@with_settings("nodes adopt", nodes="required")
def scale(settings: Settings) -> None:
    """Add or remove nodes while jobs run. Jobs on removed nodes are requeued.

    \b
    slurmbed scale --nodes 3
    """
    if not settings.nodes:
        raise UsageError("scale needs the number of nodes", f"for example: {project.command('scale', nodes=3)}")
    cluster = Cluster(settings, say)
    show_nodes(cluster.name, cluster.scale())


@click.command()
@with_settings("adopt")
def down(settings: Settings) -> None:
    """Stop the cluster. Jobs, accounting and home directories are kept.

    \b
    slurmbed down && slurmbed up
    """
    Cluster(settings, say).down()
    again = project.command("up", name=settings.name)
    console.print(f"stopped; jobs, accounting and home directories are kept; start it: {again}", soft_wrap=True)


@click.command()
@with_settings("adopt")
@click.option("--yes", is_flag=True, help="do not ask on a terminal")
def clean(settings: Settings, yes: bool) -> None:
    """Remove the cluster: containers, volumes, network.

    \b
    slurmbed clean
    slurmbed clean --name other --yes
    """
    cluster = Cluster(settings, say)
    cluster.require_engine()
    cluster.require_own()
    if not cluster.snapshot.leftovers:
        raise cluster.not_there()
    if sys.stdin.isatty() and sys.stdout.isatty() and not yes:
        click.confirm(f"Remove {settings.name} with its jobs, accounting and home directories?", abort=True)
    cluster.clean()
    console.print(f"removed the containers, volumes and network of {settings.name}; workspace/ is as it was")


@click.command()
@with_settings("adopt")
def purge(settings: Settings) -> None:
    """Remove the cluster and all images.

    \b
    slurmbed purge
    """
    Cluster(settings, say).purge()
    console.print("removed the cluster and the images; to remove the build cache too: docker builder prune")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Copy the example workspace (training programs, job scripts, lessons) into FOLDER.

    \b
    slurmbed init mine && slurmbed up --workspace mine --flavor full
    """
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise UsageError(f"{folder} exists and is not empty", "name a new folder")
    written = shutil.ignore_patterns("__pycache__")
    shutil.copytree(project.WORKSPACE, folder, ignore=written, symlinks=True, dirs_exist_ok=True)
    for name in ("data", "runs"):
        (folder / name).mkdir(exist_ok=True)
    console.print(f"copied the workspace; use it: slurmbed up --workspace {folder} --flavor full", soft_wrap=True)
