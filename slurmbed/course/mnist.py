"""`make mnist`: learn MNIST's digits with several ranks a node, prove where they ran, show the accuracy."""

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import data
from slurmbed.course.follow import complete, require_exclusive_workspace
from slurmbed.slurm.placement import Placed, block_layout, parse_ranks, placement


def train(cluster: Cluster, console: Console, nodes: int, epochs: int | None) -> dict:
    """Train on ``nodes`` nodes for ``epochs`` epochs, the program's default if None; returns the run's summary.

    Raises:
        JobFailed: with state, exit code and last log lines.
        PlacementError: the log and Slurm disagree on where ranks ran.
    """
    require_exclusive_workspace(cluster)
    record = data.digits(cluster)
    console.print(f"{record.name}: {record.train:,} images to train on, {record.test:,} to test", markup=False)
    console.print(f"from {record.source}", highlight=False, markup=False)
    arguments = [f"--nodes={nodes}", "jobs/mnist.sbatch", *(["--epochs", str(epochs)] if epochs else [])]
    job_run, tasks = complete(cluster, console, arguments, describe)
    ranks = parse_ranks(job_run.log())
    layout = block_layout(tasks, ranks)
    show(console, job_run.summary(), placement(ranks, layout, job_run.job_id))
    return job_run.summary()


def describe(metrics: list[dict]) -> tuple[str, str]:
    """How far train_mnist.py is, and its throughput if the last line ends an epoch; for ``follow.complete``."""
    last, tested = metrics[-1], [line["test_accuracy"] for line in metrics if line["test_accuracy"] is not None]
    progress = f"epoch {last['epoch']}  train {last['train_loss']:.3f}"
    progress += f"  accuracy {tested[-1]:.2%}" if tested else ""
    return progress, f"{last['images_per_s']:,.0f} images/s" if last["test_accuracy"] is not None else ""


def show(console: Console, summary: dict, placed: list[Placed]) -> None:
    """Print where the ranks ran, and the accuracy."""
    table = Table(title="where the ranks ran: the log and Slurm agree")
    for heading in ("rank", "node (log)", "node (Slurm)", "local rank", "what it trains on"):
        table.add_column(heading)
    for item in placed:
        rank = item.rank
        table.add_row(str(rank.rank), rank.host, item.slurm_node, str(rank.local_rank), rank.shard)
    console.print(table)
    console.print(
        f"{summary['epochs']} epochs on {summary['data']['name']}: test accuracy {summary['test_accuracy']:.2%} "
        f"of {summary['data']['test']:,} images, {summary['elapsed_s']:.0f} s, amp {summary['amp']}",
        highlight=False,
    )
