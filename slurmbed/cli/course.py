"""Commands that run the programs of the workspace on a cluster."""

from importlib.util import find_spec

import click

from slurmbed.cli.console import console, say
from slurmbed.cli.options import MADE_WITH, with_settings
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import DEFAULT_NODES, FLAVORS, Settings
from slurmbed.course import bubble as bubble_job
from slurmbed.course import collectives
from slurmbed.course import compare as comparison
from slurmbed.course import container as containers
from slurmbed.course import grade as grading
from slurmbed.course import launchers as launching
from slurmbed.course import mnist as digits
from slurmbed.course import train as training
from slurmbed.errors import UsageError
from slurmbed.project import command, option

TWO = f"default: {DEFAULT_NODES}"
recipe_option = click.option(
    "--recipe", type=click.Choice(["plain", "fast"]), help="model and optimizer [default: plain]"
)
steps_option = click.option("--steps", type=click.IntRange(1, 10**9), help="optimizer steps [default: the recipe's]")
text_option = click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="a text file to train on [default: Shakespeare]",
)


@click.command()
@with_settings(f"nodes {MADE_WITH}", nodes="default: as the strategy's job script says")
@click.option("--parallel", default="tp", show_default=True, help="strategy: the name of a script in workspace/jobs/")
@recipe_option
@steps_option
@text_option
@click.option(
    "--container",
    metavar="IMAGE",
    help="train in containers of this image, which must have torch: an image of this machine's Docker, or a name for "
    "srun --container-image",
)
def train(
    settings: Settings, parallel: str, recipe: str | None, steps: int | None, text: str | None, container: str | None
) -> None:
    """Train a model on the cluster and write a report. The cluster is started or grown if needed.

    \b
    slurmbed train
    slurmbed train --parallel ddp --nodes 4 --steps 200
    slurmbed train --container IMAGE
    """
    cluster = prepare(settings, needs_torch=not container)
    if container:
        containers.want_containers(cluster)
    known = training.require_strategies(cluster.workspace(), "parallel", parallel)
    nodes = settings.nodes or known[parallel]
    cluster.ensure(nodes)
    training.train(cluster, console, parallel, nodes, training.Asked(recipe, steps, text, container))


@click.command()
@with_settings(MADE_WITH)
@click.option("--strategies", default="", help="scripts in workspace/jobs/, separated by commas [default: all]")
@recipe_option
@steps_option
@text_option
def compare(settings: Settings, strategies: str, recipe: str | None, steps: int | None, text: str | None) -> None:
    """Train with one strategy after another on the same batches, and write one report.

    \b
    slurmbed compare --strategies none,ddp,tp --steps 100
    """
    cluster = prepare(settings)
    nodes = training.require_strategies(cluster.workspace(), "strategies", strategies)
    cluster.ensure(max(nodes.values()))
    comparison.compare(cluster, console, nodes, training.Asked(recipe, steps, text))


@click.command()
@with_settings(f"nodes {MADE_WITH}", nodes=TWO)
@click.option("--epochs", type=click.IntRange(1, 10**6), help="passes over the training images [default: 2]")
def mnist(settings: Settings, epochs: int | None) -> None:
    """Train a convolutional network on MNIST with torchrun, two ranks on each node.

    \b
    slurmbed mnist --nodes 2 --epochs 1
    """
    nodes = settings.nodes or DEFAULT_NODES
    cluster = prepare(settings, draws=False)
    cluster.ensure(nodes)
    digits.train(cluster, console, nodes, epochs)


@click.command()
@with_settings(f"nodes {MADE_WITH}", nodes=TWO)
def bubble(settings: Settings) -> None:
    """Measure and draw how long the stages of a pipeline are idle.

    \b
    slurmbed bubble --nodes 4
    """
    nodes = settings.nodes or DEFAULT_NODES
    if nodes < 2:
        reason = f"{option('nodes', nodes)}: a pipeline has two stages or more, each on a separate node"
        raise UsageError(reason, option("nodes", 2))
    cluster = prepare(settings)
    cluster.ensure(nodes)
    bubble_job.bubble(cluster, console, nodes)


@click.command()
@with_settings(f"nodes {MADE_WITH}", nodes=TWO)
@click.option("--lesson", type=click.Choice(list(grading.FILES)), required=True, help="number or name of the lesson")
def grade(settings: Settings, lesson: str) -> None:
    """Check the exercise of a lesson, a file in workspace/exercises/, on two nodes of the cluster.

    \b
    slurmbed grade --lesson 3
    """
    cluster = prepare(settings, draws=False)
    cluster.ensure(settings.nodes or DEFAULT_NODES)
    grading.grade(cluster, console, lesson)


@click.command()
@with_settings("adopt")
@click.option("--only", default="", help="names of launchers, separated by commas [default: all]")
def launchers(settings: Settings, only: str) -> None:
    """Run every launcher on the GPUs of the running cluster, and prove where its ranks ran.

    \b
    slurmbed launchers --only torchrun,ray
    """
    launching.require(only)
    cluster = Cluster(settings, say)
    cluster.require_running()
    cluster.require_own()
    require_flavor(cluster, "full")
    launching.run_all(cluster, console, only)


@click.command("bench-collectives")
@with_settings("adopt")
@click.option("--largest", type=click.IntRange(1 << 10, 1 << 30), help="bytes of the largest tensor [default: 64 MiB]")
def bench_collectives(settings: Settings, largest: int | None) -> None:
    """Measure the bandwidth of collectives between two nodes, by size, and compare it with iperf3.

    \b
    slurmbed bench-collectives --largest 1048576
    """
    cluster = prepare(settings)
    cluster.ensure(2)
    collectives.bench(cluster, console, largest)


def prepare(settings: Settings, draws: bool = True, needs_torch: bool = True) -> Cluster:
    """The cluster, after its engine has answered.

    Args:
        draws: the command draws figures: UsageError without matplotlib.
        needs_torch: UsageError if the nodes have no torch and the settings do not add it.
    """
    if draws and not find_spec("matplotlib"):
        raise UsageError("figures need matplotlib", "pip install matplotlib")
    cluster = Cluster(settings, say)
    cluster.ensure_engine()
    cluster.require_own()
    if needs_torch:
        require_flavor(cluster, "torch", "full")
    return cluster


def require_flavor(cluster: Cluster, *fit: str) -> None:
    """UsageError unless the nodes have one of these flavors, or the settings ask for one."""
    flavor = cluster.settings.flavor or cluster.choices().flavor
    if flavor not in fit:
        has = f"the nodes of {cluster.name} have the flavor {flavor} ({FLAVORS[flavor]})"
        reason = f"{has}; this needs the flavor {fit[-1]}"
        raise UsageError(reason, command("up", name=cluster.name, flavor=fit[-1]))
