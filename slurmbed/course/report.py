"""report.html of a run, or of several that are compared: one file that needs no network.

The pages are templates/*.html. This module gathers their values and has their figures drawn.
"""

import base64
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from slurmbed.course import figures
from slurmbed.course.runs import RunResult
from slurmbed.course.shard_map import shard_figure

TEMPLATES = Environment(
    loader=PackageLoader("slurmbed.course"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(thousands="{:,.0f}".format, percent="{:.0%}".format)


def report_page(result: RunResult, command: str) -> str:
    """The HTML page of one run.

    Args:
        command: what to type to repeat the run.
    """
    return TEMPLATES.get_template("run.html").render(
        title=f"Job {result.placed[0].rank.job_id}: {result.title}",
        summary=result.summary,
        transports=result.transports,
        megabytes=result.megabytes,
        gpu_megabytes=result.gpu_megabytes,
        placed=result.placed,
        command=command,
        loss_png=png(figures.loss_figure(result.metrics, result.summary["text"]["name"])),
        shards_png=shards_png(result),
        **timeline_values([result]),
    )


def comparison_page(
    results: list[RunResult], headings: Sequence[str], rows: list[list[str]], cpus: int, command: str
) -> str:
    """The HTML page of several runs on the same text.

    Args:
        headings, rows: the table that compares them; its first column is text, the others are numbers.
        cpus: how many CPUs the machine has, which all nodes share.
        command: what to type to repeat the runs.
    """
    summary = results[0].summary
    losses = figures.compared_losses_figure({each.strategy: each.metrics for each in results}, summary["text"]["name"])
    return TEMPLATES.get_template("comparison.html").render(
        title=f"{len(results)} strategies compared",
        summary=summary,
        results=results,
        headings=headings,
        rows=rows,
        cpus=cpus,
        command=command,
        loss_png=png(losses),
        shards_pngs=[shards_png(each) for each in results],
        **timeline_values(results),
    )


def timeline_values(results: list[RunResult]) -> dict:
    """What the section of timelines shows; ``timeline_png`` is empty if no run recorded one."""
    recorded = {each.title: each.timeline for each in results if each.timeline}
    return {
        "timeline_png": png(figures.timeline_figure(recorded)) if recorded else "",
        "clocks": {each["clock"] for each in recorded.values()},
    }


def shards_png(result: RunResult) -> str:
    """The picture of which rank holds what."""
    return png(shard_figure(result.summary["shards"], result.title))


def png(figure: Figure) -> str:
    """The figure as a PNG file in base64."""
    return base64.b64encode(figures.png(figure)).decode()
