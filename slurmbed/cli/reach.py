"""Commands that reach into a cluster: a shell, one command, and Slurm's commands on the host."""

import json
import os
import shlex
import sys
from pathlib import Path

import click

from slurmbed.cli.console import console, say
from slurmbed.cli.options import with_settings
from slurmbed.cluster import access, packages
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Settings
from slurmbed.errors import UsageError

user_option = click.option("--user", default="", help="user of the cluster, or root [default: the first user, alice]")


@click.command()
@with_settings()
@user_option
def shell(settings: Settings, user: str) -> None:
    """Open a shell on the login node.

    \b
    slurmbed shell
    echo 'sbatch job.sbatch' | slurmbed shell --user bob
    """
    cluster = Cluster(settings, say)
    cluster.require_running()
    replace_by(cluster.exec_argv(["bash", "-l"], user, streams()))


@click.command(name="exec", context_settings={"ignore_unknown_options": True})
@with_settings()
@user_option
@click.option(
    "--node", default="login", show_default=True, help="container to run it in: login, node-2 or another service"
)
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(settings: Settings, user: str, node: str, arguments: tuple[str, ...]) -> None:
    """Run a command in the cluster, with its standard streams and exit status.

    It starts in the current folder if the cluster sees that folder, else in /workspace.

    \b
    slurmbed exec -- srun -N2 hostname
    slurmbed exec --node node-2 --user root -- ss -tlnp
    """
    cluster = Cluster(settings, say)
    cluster.require_running()
    services = cluster.snapshot.services
    if node not in services:
        raise UsageError(f"the cluster {cluster.name} has no {node}", f"choose from {', '.join(sorted(services))}")
    here = Path.cwd().resolve()
    inside = next((str(here) for each in cluster.choices().shared if here.is_relative_to(each)), "/workspace")
    workdir = inside if node == "login" or node.startswith("node-") else "/"
    container = services[node].name
    user = user or cluster.user
    replace_by(["docker", "exec", "--user", user, "--workdir", workdir, *streams(), container, *arguments])


@click.command()
@with_settings()
@user_option
@click.option("--no-deps", is_flag=True, help="do not install its dependencies; nothing is downloaded")
@click.argument("path", type=click.Path(path_type=Path))
def load(settings: Settings, user: str, no_deps: bool, path: Path) -> None:
    """Install the Python project in the folder PATH, or a wheel, on all nodes, for one user.

    \b
    slurmbed load . && slurmbed exec -- srun -N2 python3 -m myproject
    slurmbed load dist/myproject-1.0-py3-none-any.whl --user bob --no-deps
    """
    packages.require_package(path)
    cluster = Cluster(settings, say)
    cluster.require_running()
    wheel = packages.load(cluster, path, user, dependencies=not no_deps)
    console.print(f"installed {wheel} for {user or cluster.user} on all nodes", highlight=False, soft_wrap=True)


def streams() -> list[str]:
    return ["--interactive", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]


def replace_by(argv: list[str]) -> None:
    """Become the command, so that its exit status is this one's."""
    os.execvp(argv[0], argv)


@click.command()
@with_settings()
@user_option
@click.option("--lifespan", type=click.IntRange(1, 10**8), default=access.LIFESPAN, show_default=True, help="seconds")
@click.option("--json", "as_json", is_flag=True, help="print the token, its user and the address of slurmrestd")
def token(settings: Settings, user: str, lifespan: int, as_json: bool) -> None:
    """Print a token that authenticates a user to slurmrestd.

    \b
    slurmbed up --rest
    export $(slurmbed token --user bob --lifespan 600)
    slurmbed token --json | jq -r .url
    """
    cluster = Cluster(settings, say)
    url = access.rest_url(cluster)
    made = access.token(cluster, user, lifespan)
    click.echo(
        json.dumps({"url": url, "user": user or cluster.user, "token": made}) if as_json else f"SLURM_JWT={made}"
    )


@click.command()
@with_settings()
@user_option
@click.option("--ssh-config", is_flag=True, help="print a Host entry for ~/.ssh/config instead")
def env(settings: Settings, user: str, ssh_config: bool) -> None:
    """Print shell variables that put sbatch, srun, squeue and others on PATH.

    The commands run in the cluster, in the current folder, with this shell's environment and streams. The cluster must
    see that folder: it sees its workspace and what `slurmbed up --mount DIR` shares.

    \b
    eval "$(slurmbed env)" && sbatch --wait -N2 --wrap 'srun hostname'
    slurmbed env --ssh-config >>~/.ssh/config && ssh slurmbed squeue
    """
    cluster = Cluster(settings, say)
    cluster.require_running()
    if ssh_config:
        click.echo(access.ssh_config(cluster, user or cluster.user), nl=False)
        return
    if os.geteuid() == 0 and not user:
        click.echo(
            f"jobs run as {cluster.user} and cannot write to root's folders; --user root makes them root's", err=True
        )
    user = user or cluster.user
    for name, value in access.environment(cluster, user, os.environ).items():
        click.echo(f"export {name}={shlex.quote(value)}")
