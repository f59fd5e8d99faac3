"""report.html of a run: loss curve, placement, share of time in communication, sample. One file, no network."""

import base64
import html
import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from slurmbed.slurm import Placed

matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
TRAIN, VALIDATION, COMPUTE, COMMUNICATION = "#9bb8d3", "#1f4e79", "#6aa56a", "#d08a3e"

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
 table {{ border-collapse: collapse }}
 td, th {{ padding: .3rem .8rem; text-align: left; border-bottom: 1px solid #ddd }}
 pre {{ background: #f6f6f4; padding: 1rem; white-space: pre-wrap }} img {{ max-width: 100% }}
</style>
<h1>{title}</h1>
<p>{lead}</p>
<h2>Loss</h2>
<img alt="loss curve" src="data:image/png;base64,{loss}">
<h2>Placement</h2>
<p>Two sources that agree: what each rank wrote into the job's log, and where Slurm says it started it.</p>
<table><tr><th>rank</th><th>node (log)</th><th>node (Slurm)</th><th>what it holds</th></tr>{rows}</table>
<h2>Time</h2>
<img alt="share of time in communication" src="data:image/png;base64,{time}">
<h2>Sample</h2>
<pre>{sample}</pre>
<h2>Again</h2>
<pre>{command}</pre>
</html>
"""


def write_report(folder: Path, summary: dict, metrics: list[dict], placed: list[Placed], command: str) -> Path:
    """Write ``folder/report.html`` and return its path.

    Args:
        summary: summary.json of the run; metrics: lines of its metrics.jsonl; command: what to type for the same again.
    """
    text = summary["text"]
    title = f"Job {placed[0].rank.job_id}: tensor parallel over {summary['world_size']} ranks"
    lead = (
        f"{html.escape(text['name'])} ({text['characters']:,} characters, {text['symbols']} symbols, "
        f"from {html.escape(text['source'])}); "
        f"{summary['parameters']:,} parameters; validation loss <b>{summary['val_loss']:.3f}</b> "
        f"after {summary['steps']} steps; {summary['tokens_per_s']:,.0f} tokens/s; torch {summary['torch']}; "
        f"{summary['threads']} thread(s) a rank."
    )
    rows = "".join(
        f"<tr><td>{item.rank.rank}</td><td>{html.escape(item.rank.host)}</td>"
        f"<td>{html.escape(item.slurm_node)}</td><td>{html.escape(item.rank.shard)}</td></tr>"
        for item in placed
    )
    page = PAGE.format(
        title=html.escape(title),
        lead=lead,
        loss=_png(loss_figure(metrics, text["name"])),
        time=_png(time_figure(summary["communication_share"])),
        rows=rows,
        sample=html.escape(summary["sample"]),
        command=html.escape(command),
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def loss_figure(metrics: list[dict], text: str) -> Figure:
    """Training and validation loss (nats per character) over steps."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([m["step"] for m in metrics], [m["train_loss"] for m in metrics], color=TRAIN, label="train")
    evaluated = [(m["step"], m["val_loss"]) for m in metrics if m["val_loss"] is not None]
    steps, losses = zip(*evaluated, strict=True)
    axes.plot(steps, losses, color=VALIDATION, marker="o", markersize=4, label="validation (whole text)")
    axes.annotate(f"{losses[-1]:.3f}", (steps[-1], losses[-1]), xytext=(0, 8), textcoords="offset points", ha="right")
    axes.set(xlabel="step", ylabel="loss, nats per character", title=text)
    axes.legend(frameon=False)
    return figure


def time_figure(share: float) -> Figure:
    """One bar: computing beside communicating, of the time of training steps on rank 0."""
    figure = Figure(figsize=(8, 1.2), layout="constrained")
    axes = figure.subplots()
    for left, width, color, name in (
        (0, 1 - share, COMPUTE, "compute"),
        (1 - share, share, COMMUNICATION, "collectives"),
    ):
        axes.barh(0, width, left=left, color=color)
        if width > 0.08:
            axes.text(left + width / 2, 0, f"{name} {width:.0%}", ha="center", va="center", color="white")
    axes.set(xlim=(0, 1), yticks=[], xticks=[])
    axes.spines[:].set_visible(False)
    return figure


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    return base64.b64encode(buffer.getvalue()).decode()
