"""`make train`: submit the job of a strategy as the user, follow it, and say what it showed."""

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import files as workspace_files
from slurmbed.course import prepare
from slurmbed.course.report import WORDS, Outcome, report_page
from slurmbed.engine.compose import MADE_BY_COMPOSE
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import run
from slurmbed.slurm.client import Slurm, failure
from slurmbed.slurm.placement import Placed, parse_ranks, placement, require_separate_nodes
from slurmbed.slurm.records import Job
from slurmbed.wait import Pending, wait_until

POLL = 0.5  # seconds between two looks at a job
LONGEST = 6 * 3600  # seconds; the job's own time limit is the bound that matters
Describe = Callable[[list[dict]], tuple[str, str]]
"""Lines of metrics.jsonl -> where the run is, and, of a line worth keeping on the screen, what to add; else \"\"."""


def check_alone(name: str, workspace: Path) -> None:
    """UsageError if another cluster writes its runs to the same workspace: their job ids would meet."""
    form = '{{.Label "com.docker.compose.project"}}'
    filters = ("label=com.docker.compose.service=login", f"label={MADE_BY_COMPOSE}", f"volume={workspace}")
    argv = ["docker", "ps", *(f"--filter={each}" for each in filters), "--format", form]
    others = set(run(argv, timeout=30).check().stdout.split()) - {name}
    if others:
        raise UsageError(
            f"the cluster {min(others)} writes its runs to {workspace} too",
            f"give one a copy: cp -r workspace other, then make up NAME={name} WORKSPACE=other",
        )


class Run:
    """One job's files in the workspace, seen from the host."""

    def __init__(self, workspace: Path, job_id: str):
        self.workspace, self.job_id = workspace, job_id
        self.folder = workspace / "runs" / job_id
        self.log_file = workspace / "runs" / f"{job_id}.log"

    def set_earlier_aside(self) -> None:
        """Job ids begin at 1 again after `make clean`: what an earlier job of this id left is renamed, not lost."""
        with workspace_files.opened(self.workspace, "runs") as runs:
            names = set(os.listdir(runs)) if runs is not None else set()
            for path in (self.folder, self.log_file):
                if path.name in names:
                    aside = (f"{path.stem}-earlier-{n}{path.suffix}" for n in itertools.count(1))
                    free = next(name for name in aside if name not in names)
                    os.rename(path.name, free, src_dir_fd=runs, dst_dir_fd=runs)

    def read(self, name: str) -> str | None:
        """A file of the run's folder; None if it is not there."""
        return workspace_files.read(self.workspace, f"runs/{self.job_id}/{name}")

    def log(self) -> str:
        return workspace_files.read(self.workspace, f"runs/{self.job_id}.log") or ""

    def metrics(self) -> list[dict]:
        """Whole lines of metrics.jsonl; the last may be half written."""
        lines = (self.read("metrics.jsonl") or "").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def results(self, name: str) -> dict:
        """What the run wrote into a JSON file. SlurmbedError if there is no such file."""
        text = self.read(name)
        if text is None:
            raise SlurmbedError(f"the run has written no {self.folder / name}", f"its log: {self.log_file}")
        return json.loads(text)

    def summary(self) -> dict:
        return self.results("summary.json")

    def outcome(self, placed: list[Placed]) -> Outcome:
        """What the run wrote, once it is over."""
        timeline = self.read("timeline.json")
        return Outcome(
            summary=self.summary(),
            metrics=self.metrics(),
            placed=placed,
            timeline=json.loads(timeline) if timeline else None,
        )


def strategies(workspace: Path) -> dict[str, int]:
    """Strategies that have a job script in the workspace, and the number of nodes that it asks for."""
    found = {}
    for script in (workspace / "jobs").glob("*.sbatch"):
        text = workspace_files.read(workspace, f"jobs/{script.name}") or ""
        nodes = re.search(r"^#SBATCH --nodes=(\d+)", text, re.MULTILINE)
        if nodes and f"train.py --parallel {script.stem} " in text:
            found[script.stem] = int(nodes[1])
    order = [*WORDS, *sorted(found)]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def require_strategies(workspace: Path, word: str, names: str) -> dict[str, int]:
    """The nodes that each strategy of ``names``, with commas between, asks for; of all if empty.

    UsageError, with make's ``word``, if one has no job script.
    """
    known = strategies(workspace)
    asked = names.split(",") if names else list(known)
    for name in asked:
        if name not in known:
            raise UsageError(
                f"{word}={names}: there is no strategy {name!r} in {workspace}/jobs", f"choose from {', '.join(known)}"
            )
    return {name: known[name] for name in asked}


def train(cluster: Cluster, console: Console, parallel: str, nodes: int, steps: str, text: str) -> Path:
    """Prepare, submit, follow, prove, report; returns the report's path.

    Raises:
        JobFailed: with state, exit code and last log lines.
        PlacementError: the log and Slurm disagree on where ranks ran.
    """
    files, outcome = run_job(cluster, console, parallel, nodes, prepare_run(cluster, console, steps, text))
    show(console, outcome)
    again = again_command("train", f"PARALLEL={parallel}", f"NODES={nodes}", steps=steps, text=text)
    path = cluster.write(f"runs/{files.job_id}/report.html", report_page(outcome, again).encode())
    console.print(f"report: {path}", soft_wrap=True)
    return path


def again_command(*words: str, steps: str, text: str) -> str:
    """What to type for the same again."""
    given = [*([f"STEPS={steps}"] if steps else []), *([f"TEXT={text}"] if text else [])]
    return shlex.join(["make", *words, *given])


def prepare_run(cluster: Cluster, console: Console, steps: str, text: str) -> list[str]:
    """See to the text; returns train.py's words."""
    check_alone(cluster.name, cluster.workspace())
    record = prepare.text(cluster, text)
    console.print(f"text: {record.name}, {record.characters:,} characters, from {record.source}", markup=False)
    return ["--text", record.path, *(["--steps", steps] if steps else [])]


def run_job(cluster: Cluster, console: Console, parallel: str, nodes: int, words: list[str]) -> tuple[Run, Outcome]:
    """Submit a strategy's job, follow it to its end, and prove where its ranks ran. Raises as ``train``."""
    files, layout = complete(cluster, console, [f"--nodes={nodes}", f"jobs/{parallel}.sbatch", *words], described)
    placed = placement(parse_ranks(files.log()), layout, files.job_id)
    require_separate_nodes(placed)
    return files, files.outcome(placed)


def complete(cluster: Cluster, console: Console, words: list[str], describe: Describe) -> tuple[Run, dict[int, str]]:
    """``sbatch WORDS``, followed to its end: the job's files, and the node of each of its tasks.

    Raises:
        JobFailed: with state, exit code and last log lines.
    """
    job_id = cluster.slurm.submit("--hold", *words)
    files = Run(cluster.workspace(), job_id)
    console.print(f"submitted job {job_id}: sbatch {' '.join(words)}")
    try:
        files.set_earlier_aside()
        cluster.slurm.release(job_id)
        job, layout = follow(cluster.slurm, files, console, describe)
    except KeyboardInterrupt:
        leave_or_cancel(cluster.slurm, job_id, console)
        raise
    if job.state != "COMPLETED":
        raise failure(job, files.log(), str(files.log_file))
    return files, layout or cluster.slurm.accounted_layout(job_id)


def follow(client: Slurm, files: Run, console: Console, describe: Describe) -> tuple[Job, dict[int, str]]:
    """The job once it is over, and where slurmctld laid out its tasks; shows progress meanwhile, by ``describe``."""
    layout: dict[int, str] = {}
    with Follower(console, describe) as follower:

        def check() -> Job:
            job = client.job(files.job_id)
            follower.update(job, files.metrics())
            if job.state == "RUNNING" and not layout:
                layout.update(client.layout(files.job_id))
            if not job.is_over:
                raise Pending(f"{job.state} ({job.reason})")
            return job

        what = f"job {files.job_id} ends"
        return wait_until(check, what=what, timeout=LONGEST, interval=POLL), layout


def described(metrics: list[dict]) -> tuple[str, str]:
    """Where train.py is, and its throughput at an evaluation."""
    last, evaluated = metrics[-1], [line["val_loss"] for line in metrics if line["val_loss"] is not None]
    what = f"train {last['train_loss']:.3f}" + (f"  val {evaluated[-1]:.3f}" if evaluated else "")
    return what, f"{last['tokens_per_s']:,.0f} tokens/s" if last["val_loss"] is not None else ""


class Follower:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, describe: Describe):
        self.console, self.describe = console, describe
        self.shown: str | int = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("waiting", total=None)

    def __enter__(self) -> "Follower":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, job: Job, metrics: list[dict]) -> None:
        if not metrics:
            state = f"job {job.id}: {job.state}" + (f" ({job.reason})" if job.state == "PENDING" else "")
            self.bar.update(self.task, description=state)
            self.line(state, state)
            return
        last = metrics[-1]
        what, milestone = self.describe(metrics)
        self.bar.update(self.task, description=what, completed=last["step"], total=last["steps"])
        if milestone:
            self.line(last["step"], f"step {last['step']}/{last['steps']}  {what}  {milestone}")

    def line(self, key: str | int, text: str) -> None:
        if key != self.shown and not self.console.is_terminal:
            self.shown = key
            self.console.print(text, highlight=False)


def leave_or_cancel(client: Slurm, job_id: str, console: Console) -> None:
    """After Ctrl-C: ask what becomes of the job. Where nobody can answer it is left running."""
    answer = ""
    if console.is_terminal and sys.stdin.isatty():
        try:
            answer = console.input(f"\njob {job_id} is not over: [b]c[/b]ancel it, or [b]l[/b]eave it (l)? ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
    if answer.strip().lower().startswith("c"):
        client.cancel(job_id)
        console.print(f"cancelled job {job_id}")
    else:
        console.print(f"job {job_id} goes on; its log is runs/{job_id}.log, end it with: scancel {job_id}")


def show(console: Console, outcome: Outcome) -> None:
    """Placement, losses, sample."""
    summary = outcome.summary
    table = Table(title="where the ranks ran: the log and Slurm agree")
    for heading in ("rank", "node (log)", "node (Slurm)", "what it holds"):
        table.add_column(heading)
    for item in outcome.placed:
        table.add_row(str(item.rank.rank), item.rank.host, item.slurm_node, item.rank.shard)
    console.print(table)
    text = summary["text"]["name"]
    console.print(
        f"{summary['steps']} steps on {text}: train loss {summary['train_loss']:.3f}, "
        f"validation loss {summary['val_loss']:.3f}, {summary['tokens_per_s']:,.0f} tokens/s, "
        f"{summary['communication_share']:.0%} of the time in communication",
        highlight=False,
    )
    console.rule("sample")
    console.print(summary["sample"], markup=False, highlight=False)
    console.rule()
