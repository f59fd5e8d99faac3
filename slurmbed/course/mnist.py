"""`make mnist`: submit the job that learns digits by torchrun, follow it, prove its placement, say its accuracy."""

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import prepare, training
from slurmbed.slurm.placement import Placed, block_layout, parse_ranks, placement


def train(cluster: Cluster, console: Console, nodes: int, epochs: str) -> dict:
    """Prepare, submit, follow, prove; returns the run's summary.

    Raises:
        JobFailed: with state, exit code and last log lines.
        PlacementError: the log and Slurm disagree on where ranks ran.
    """
    training.check_alone(cluster.name, cluster.workspace())
    record = prepare.digits(cluster)
    console.print(f"{record.name}: {record.train:,} images to train on, {record.test:,} to test", markup=False)
    console.print(f"from {record.source}", highlight=False, markup=False)
    words = ["--epochs", epochs] if epochs else []
    words = [f"--nodes={nodes}", "jobs/mnist.sbatch", *words]
    files, tasks = training.complete(cluster, console, words, described)
    ranks = parse_ranks(files.log())
    layout = block_layout(tasks, ranks)
    show(console, files.summary(), placement(ranks, layout, files.job_id))
    return files.summary()


def described(metrics: list[dict]) -> tuple[str, str]:
    """Where mnist.py is, and its throughput at the end of an epoch."""
    last, tested = metrics[-1], [line["test_accuracy"] for line in metrics if line["test_accuracy"] is not None]
    what = f"epoch {last['epoch']}  train {last['train_loss']:.3f}" + (f"  accuracy {tested[-1]:.2%}" if tested else "")
    return what, f"{last['images_per_s']:,.0f} images/s" if last["test_accuracy"] is not None else ""


def show(console: Console, summary: dict, placed: list[Placed]) -> None:
    """Placement and accuracy."""
    table = Table(title="where the ranks ran: the log and Slurm agree")
    for heading in ("rank", "node (log)", "node (Slurm)", "on the node", "what it trains on"):
        table.add_column(heading)
    for item in placed:
        rank = item.rank
        table.add_row(str(rank.rank), rank.host, item.slurm_node, f"number {rank.local_rank}", rank.shard)
    console.print(table)
    console.print(
        f"{summary['epochs']} epochs on {summary['data']['name']}: test accuracy {summary['test_accuracy']:.2%} "
        f"of {summary['data']['test']:,} images, {summary['elapsed_s']:.0f} s, amp {summary['amp']}",
        highlight=False,
    )
