"""`make train`: train by one strategy on the cluster, prove where its ranks ran, show the result, write the report."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import container, data, files
from slurmbed.course.follow import complete, require_exclusive_workspace
from slurmbed.course.runs import STRATEGY_NAMES, Run, RunResult
from slurmbed.errors import UsageError
from slurmbed.project import command, option
from slurmbed.slurm.placement import parse_ranks, placement, require_separate_nodes


def strategies(workspace: Path) -> dict[str, int]:
    """Strategies that have a job script in the workspace, and the number of nodes that the script asks for."""
    found = {}
    for script in (workspace / "jobs").glob("*.sbatch"):
        text = files.read(workspace, f"jobs/{script.name}") or ""
        nodes = re.search(r"^#SBATCH --nodes=(\d+)", text, re.MULTILINE)
        if nodes and f"train.py --parallel {script.stem} " in text:
            found[script.stem] = int(nodes[1])
    order = [*STRATEGY_NAMES, *sorted(found)]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def require_strategies(workspace: Path, setting: str, names: str) -> dict[str, int]:
    """The number of nodes that each of the strategies ``names`` asks for.

    Args:
        setting: the option that the user gave, for the error: parallel or strategies.
        names: separated by commas; all strategies if empty.

    Raises:
        UsageError: one of them has no job script in the workspace.
    """
    known = strategies(workspace)
    asked = names.split(",") if names else list(known)
    for name in asked:
        if name not in known:
            raise UsageError(
                f"{option(setting, names)}: there is no strategy {name!r} in {workspace}/jobs",
                f"choose from {', '.join(known)}",
            )
    return {name: known[name] for name in asked}


@dataclass(frozen=True)
class Asked:
    """Options of a run."""

    recipe: str | None = None
    """The program's default if None, here and below."""
    steps: int | None = None
    """Number of optimizer steps."""
    text: str | None = None
    """A text file of the host; Shakespeare if None."""
    container: str | None = None
    """The image of the ranks' containers; they have none if None."""


def train(cluster: Cluster, console: Console, parallel: str, nodes: int, asked: Asked) -> Path:
    """Train by the strategy ``parallel`` on ``nodes`` nodes; returns the report's path.

    Raises:
        JobFailed: with state, exit code and last log lines.
        PlacementError: the log and Slurm disagree on where ranks ran.
    """
    arguments = prepare_run(cluster, console, asked)
    image = container.provide(cluster, console, asked.container) if asked.container else ""
    job_run, result = run_job(cluster, console, parallel, nodes, arguments, image)
    show(console, result)
    from slurmbed.course.report import report_page  # it imports matplotlib, which takes half a second

    again = command("train", parallel=parallel, nodes=nodes, **asdict(asked))
    path = cluster.write(f"runs/{job_run.job_id}/report.html", report_page(result, again).encode())
    console.print(f"report: {path}", soft_wrap=True)
    return path


def prepare_run(cluster: Cluster, console: Console, asked: Asked) -> list[str]:
    """Prepare the text to train on; returns the arguments for train.py."""
    require_exclusive_workspace(cluster)
    record = data.text(cluster, asked.text)
    console.print(f"text: {record.name}, {record.characters:,} characters, from {record.source}", markup=False)
    flags = {"--recipe": asked.recipe, "--steps": asked.steps}
    return ["--text", record.path, *(str(word) for flag in flags.items() if flag[1] for word in flag)]


def run_job(
    cluster: Cluster, console: Console, parallel: str, nodes: int, arguments: list[str], image: str = ""
) -> tuple[Run, RunResult]:
    """Submit a strategy's job, follow it to its end, and prove that each rank had a separate node.

    Args:
        image: for the ranks' containers, as jobs/launch.sh takes it from the environment; "" for none.

    Raises as ``train``.
    """
    in_containers = [f"--export=ALL,IMAGE={image}"] if image else []
    submission = [*in_containers, f"--nodes={nodes}", f"jobs/{parallel}.sbatch", *arguments]
    job_run, layout = complete(cluster, console, submission, describe)
    placed = placement(parse_ranks(job_run.log()), layout, job_run.job_id)
    require_separate_nodes(placed)
    return job_run, job_run.result(placed)


def describe(metrics: list[dict]) -> tuple[str, str]:
    """How far train.py is, and its throughput if the last line is an evaluation; for ``follow.complete``."""
    last, evaluated = metrics[-1], [line["val_loss"] for line in metrics if line["val_loss"] is not None]
    progress = f"train {last['train_loss']:.3f}" + (f"  val {evaluated[-1]:.3f}" if evaluated else "")
    return progress, f"{last['tokens_per_s']:,.0f} tokens/s" if last["val_loss"] is not None else ""


def show(console: Console, result: RunResult) -> None:
    """Print where the ranks ran, the losses and the sample."""
    summary = result.summary
    table = Table(title="where the ranks ran: the log and Slurm agree")
    for heading in ("rank", "node (log)", "node (Slurm)", "what it holds"):
        table.add_column(heading)
    for item in result.placed:
        table.add_row(str(item.rank.rank), item.rank.host, item.slurm_node, item.rank.shard)
    console.print(table)
    text = summary["text"]["name"]
    carried = f", by {result.transports}" if result.transports else ""
    console.print(
        f"{summary['steps']} steps of recipe {summary['config']['recipe']} on {text}: "
        f"train loss {summary['train_loss']:.3f}, "
        f"validation loss {summary['val_loss']:.3f}, {summary['tokens_per_s']:,.0f} tokens/s, "
        f"{summary['communication_share']:.0%} of the time in communication{carried}; "
        f"a rank holds {result.megabytes} MB of parameters, gradients and optimizer state",
        highlight=False,
    )
    console.rule("sample")
    console.print(summary["sample"], markup=False, highlight=False)
    console.rule()
