"""`make bench-train`: tokens a second, steps and seconds to a loss: both recipes, one process beside two nodes."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from matplotlib import colormaps
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Settings
from slurmbed.course import data
from slurmbed.course.runs import Run
from slurmbed.errors import UsageError
from slurmbed.project import WORKSPACE

TIMEOUT = 1800  # seconds for one job
LOSS = 1.88  # nats per character: what nanoGPT's README gives for these settings on a CPU, with tiny Shakespeare
SEEDS = (1337, 1, 2, 3, 4)

# nanoGPT's settings for a CPU: config/train_shakespeare_char.py with the flags of its README. The plain model differs
# from nanoGPT's in a head of its own, biases and larger initial weights. nanoGPT takes 2,000 steps, which may end
# just above LOSS: in 2,400 both ways reach it, and their times can be compared.
NANOGPT = (
    "--recipe plain --layers 4 --steps 2400 --batch-size 12 --lr 1e-3 --warmup 100 --decay cosine --final-lr 0.1 "
    "--eval-every 50"
)
PLAIN = "--recipe plain --eval-every 25"
FAST = "--recipe fast --eval-every 10"


@dataclass(frozen=True)
class Row:
    """A way to train: ``threads`` for each of the job's ranks, one rank a node."""

    name: str
    job: str
    threads: int
    flags: str


# As many sequences on each rank as in one process: how data parallelism is used once a batch fills the machines.
WIDE = "--recipe fast --batch-size 32 --steps 120 --eval-every 120"
ONE, TWO = "nanoGPT's settings, 1 process, 2 threads", "fast, 1 process, 2 threads"
GOAL = 4  # times sooner than ONE
SINGLE, DDP, TP = "fast, 1 process, 1 thread", "fast, ddp, 2 nodes x 1 thread", "fast, tp, 2 nodes x 1 thread"
# The same by the sockets of workspace/ranks/sockets.py, beside PyTorch's gloo.
BY_SOCKETS = ", by sockets"
PLAIN_DDP, PLAIN_TP = "plain, ddp, 2 nodes x 1 thread", "plain, tp, 2 nodes x 1 thread"
DOUBLE = "fast, ddp, 2 nodes x 1 thread, twice the batch (speed only)"
ROWS = (
    Row(ONE, "none", 2, NANOGPT),
    Row("plain, 1 process, 2 threads", "none", 2, PLAIN),
    *(
        Row(name + end, job, 1, PLAIN + flags)
        for name, job in ((PLAIN_DDP, "ddp"), (PLAIN_TP, "tp"))
        for end, flags in (("", ""), (BY_SOCKETS, " --all-reduce socket"))
    ),
    Row(SINGLE, "none", 1, FAST),
    Row(TWO, "none", 2, FAST),
    *(
        Row(name + end, job, 1, FAST + flags)
        for name, job in ((DDP, "ddp"), (TP, "tp"))
        for end, flags in (("", ""), (BY_SOCKETS, " --all-reduce socket"))
    ),
    Row(DOUBLE, "ddp", 1, WIDE),
)


@dataclass(frozen=True)
class TimedRun:
    """One run. Steps, characters and seconds of training, without evaluation: until the loss was reached, or all."""

    tokens_per_s: float
    communication: float
    steps: int
    characters: int
    seconds: float
    reached: bool
    loss: float
    curve: list[tuple[float, float]]  # (seconds of training, validation loss)


@click.command("bench-train")
@click.option("--name", default="slurmbed", show_default=True, help="prefix of the cluster's name")
@click.option("--seeds", type=click.IntRange(1, len(SEEDS)), default=3, show_default=True, help="runs of each way")
@click.option("--text", type=click.Path(exists=True, dir_okay=False), help="a text file [default: Shakespeare]")
def bench_train(name: str, seeds: int, text: str | None) -> None:
    """Compare one process with two nodes: tokens a second, and seconds to a loss.

    Each way trains with each seed, on a cluster of its own, every node with all the CPUs of the host.
    """
    if (os.cpu_count() or 1) < 2:
        raise UsageError(
            "bench-train compares 1 process of 2 threads with 2 nodes: it needs 2 CPUs", "use another host"
        )
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        keep_runs = shutil.ignore_patterns("runs")
        workspace = Path(shutil.copytree(WORKSPACE, Path(folder) / "workspace", ignore=keep_runs, symlinks=True))
        os.chmod(folder, 0o755)
        (workspace / "runs").mkdir()
        cpus = os.cpu_count()
        cluster = Cluster(Settings(name=f"{name}-bench", nodes=2, cpus=cpus, workspace=workspace))
        timed: dict[Row, list[TimedRun]] = {row: [] for row in ROWS}
        try:
            cluster.up()
            record = data.text(cluster, text)
            for seed in SEEDS[:seeds]:
                for row in ROWS:
                    run = train(cluster, workspace, row, record.path, seed)
                    timed[row].append(run)
                    console.print(f"seed {seed}, {row.name}: {summary(run)}", highlight=False)
        finally:
            cluster.clean()
    console.print(table(timed, record.name))
    for line in ratios({row.name: found for row, found in timed.items()}):
        console.print(line, highlight=False)
    path = Path("bench-train.png").resolve()  # not in the workspace: where a job may have put a link
    console.print(f"plot: {draw(timed, record.name, path)}", soft_wrap=True)


def train(cluster: Cluster, workspace: Path, row: Row, text: str, seed: int) -> TimedRun:
    """One run, from its job to what it wrote."""
    words = f"{row.flags} --seed {seed} --text {text} --checkpoint-every 100000 --profile-step 0 --sample-length 0"
    job_id = cluster.slurm.submit(f"--cpus-per-task={row.threads}", f"jobs/{row.job}.sbatch", *words.split())
    files = Run(workspace, job_id)
    cluster.slurm.wait_completed(job_id, TIMEOUT, log=files.log)
    return timed_run(files.summary(), files.metrics())


def timed_run(summary: dict, metrics: list[dict]) -> TimedRun:
    """The run from a run's summary.json and the lines of its metrics.jsonl."""
    evaluated = [line for line in metrics if line["val_loss"] is not None]
    below = [line for line in evaluated if line["val_loss"] <= LOSS]
    end, config = below[0] if below else evaluated[-1], summary["config"]
    return TimedRun(
        tokens_per_s=summary["tokens_per_s"],
        communication=summary["communication_share"],
        steps=end["step"],
        characters=end["step"] * config["batch_size"] * config["block_size"],
        seconds=end["train_s"],
        reached=bool(below),
        loss=summary["val_loss"],
        curve=[(line["train_s"], line["val_loss"]) for line in evaluated],
    )


def summary(run: TimedRun) -> str:
    sign = "" if run.reached else "> "
    return (
        f"{run.tokens_per_s:,.0f} tokens/s, {run.communication:.0%} in communication, "
        f"{sign}{run.seconds:.1f} s and {sign}{run.steps} steps to {LOSS}, {run.loss:.3f} at the end"
    )


def table(timed: dict[Row, list[TimedRun]], text: str) -> Table:
    """A row for each way to train: medians over seeds, and the range of what matters."""
    seeds = len(next(iter(timed.values())))
    shown = Table(
        title=f"{text}: medians of {seeds} seed(s) (smallest to largest)", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for heading in (
        "",
        "tokens/s",
        "in communication",
        f"steps to {LOSS}",
        f"training seconds to {LOSS}",
        "loss at the end",
    ):
        shown.add_column(heading, justify="right" if heading else "left")
    for row, found in timed.items():
        seconds = [run.seconds for run in found]
        bound = "" if all(run.reached for run in found) else "> "
        spread = f" ({min(seconds):.1f} to {max(seconds):.1f})" if seeds > 1 else ""
        shown.add_row(
            row.name,
            f"{median(run.tokens_per_s for run in found):,.0f}",
            f"{median(run.communication for run in found):.0%}",
            f"{bound}{median(run.steps for run in found):,.0f}",
            f"{bound}{median(seconds):.1f}{spread}",
            f"{median(run.loss for run in found):.3f}",
        )
    return shown


def ratios(timed: dict[str, list[TimedRun]]) -> list[str]:
    """What the figures say, as ratios of medians within this run."""
    speed = {name: median(run.tokens_per_s for run in found) for name, found in timed.items()}
    by_sockets = [
        f"{label} {speed[name + BY_SOCKETS] / speed[name]:.2f}"
        for label, name in (("plain ddp", PLAIN_DDP), ("plain tp", PLAIN_TP), ("fast ddp", DDP), ("fast tp", TP))
    ]
    sooner = [f"{what} {sooner_by(timed[ONE], timed[TWO], what)}" for what in ("steps", "characters", "seconds")]
    return [
        f"tokens/s, sockets / gloo: {', '.join(by_sockets)}",
        f"tokens/s, tp over 2 nodes / 1 process with 2 threads: {speed[TP] / speed[TWO]:.2f}",
        f"tokens/s, ddp over 2 nodes / twice 1 process with 1 thread: {speed[DDP] / 2 / speed[SINGLE]:.2f} on the same "
        f"batch, {speed[DOUBLE] / 2 / speed[SINGLE]:.2f} with a batch of that size on each rank",
        f"to {LOSS}, nanoGPT's settings / fast, both in 1 process with 2 threads: {', '.join(sooner)} "
        f"(the goal is {GOAL} in seconds)",
    ]


def sooner_by(slow: list[TimedRun], fast: list[TimedRun], what: str) -> str:
    """How many times less of ``what`` the fast way took to the loss; a bound if the slow way ended before."""
    if not all(run.reached for run in fast):
        return "not reached"
    bound = "" if all(run.reached for run in slow) else "at least "
    return f"{bound}{median(getattr(run, what) for run in slow) / median(getattr(run, what) for run in fast):.1f}"


def draw(timed: dict[Row, list[TimedRun]], text: str, path: Path) -> Path:
    """Validation loss over seconds of training, a line for each run."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (row, found) in enumerate(timed.items()):
        for run in found:
            label = row.name if run is found[0] else None
            colour = colormaps["tab20"](number)
            axes.plot(*zip(*run.curve, strict=True), color=colour, label=label, linewidth=1.2, alpha=0.9)
    axes.axhline(LOSS, color="black", linestyle=":", linewidth=1)
    axes.set(xlabel="seconds of training, without evaluation", ylabel="validation loss, nats per character")
    axes.set(title=text, xscale="log", ylim=(LOSS - 0.1, 2.7))
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)
    return path
