"""report.html of a run, or of several that are compared. One file, no network."""

import base64
import html
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from slurmbed.course import figures
from slurmbed.slurm.placement import Placed

WORDS = {
    "none": "one process",
    "ddp": "data parallel",
    "tp": "tensor parallel",
    "tp-dtensor": "tensor parallel by DTensor",
    "fsdp": "data parallel with sharded parameters",
    "pp": "pipeline parallel",
    "hybrid": "data and tensor parallel",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
 table {{ border-collapse: collapse }}
 td, th {{ padding: .3rem .8rem; text-align: left; border-bottom: 1px solid #ddd }}
 td.number, th.number {{ text-align: right }}
 pre {{ background: #f6f6f4; padding: 1rem; white-space: pre-wrap }} img {{ max-width: 100% }}
</style>
<h1>{title}</h1>
{body}
</html>
"""
TIMELINE = (
    "Recorded by torch.profiler, which makes this step longer than others. <i>transfer</i>: nothing to compute until a "
    "collective has ended; <i>idle</i>: the same, because another rank has not begun it."
)
CLOCKS = {
    "shared": "All ranks ran on one machine, so their clocks are one.",
    "barrier": "The ranks' clocks differ; they are set to the end of a barrier before the step.",
}
PLACEMENT = "Two sources that agree: what each rank wrote into the job's log, and where Slurm says it started it."
SHARDS = "The embedding, the matrices of the first block and the head, to scale; numbers and colours are ranks."


@dataclass(frozen=True)
class Outcome:
    """What is left of a run: summary.json, the lines of metrics.jsonl, timeline.json if there is one, its placement."""

    summary: dict
    metrics: list[dict]
    placed: list[Placed]
    timeline: dict | None = field(default=None)

    @property
    def parallel(self) -> str:
        return self.summary["config"]["parallel"]

    @property
    def title(self) -> str:
        ranks = self.summary["world_size"]
        return WORDS.get(self.parallel, self.parallel) + (f" over {ranks} ranks" if ranks > 1 else "")

    @property
    def nodes(self) -> int:
        return len({item.slurm_node for item in self.placed})


def report_page(outcome: Outcome, command: str) -> str:
    """The HTML page of one run; ``command`` is what to type for the same again."""
    summary = outcome.summary
    text = summary["text"]
    lead = (
        f"{html.escape(text['name'])} ({text['characters']:,} characters, {text['symbols']} symbols, "
        f"from {html.escape(text['source'])}); "
        f"{summary['parameters']:,} parameters; validation loss <b>{summary['val_loss']:.3f}</b> "
        f"after {summary['steps']} steps; {summary['tokens_per_s']:,.0f} tokens/s, "
        f"{summary['communication_share']:.0%} of the time in communication; torch {summary['torch']}; "
        f"{summary['threads']} thread(s) a rank."
    )
    sections = [
        f"<p>{lead}</p>",
        section("Loss", picture("loss curve", figures.loss_figure(outcome.metrics, text["name"]))),
        timelines({outcome.title: outcome}),
        section("Who holds what", paragraph(SHARDS), shard_map(outcome)),
        section("Placement", paragraph(PLACEMENT), placement_table(outcome.placed)),
        section("Sample", f"<pre>{html.escape(summary['sample'])}</pre>"),
        section("Again", f"<pre>{html.escape(command)}</pre>"),
    ]
    return page(f"Job {outcome.placed[0].rank.job_id}: {outcome.title}", sections)


def comparison_page(outcomes: list[Outcome], note: str, command: str) -> str:
    """The HTML page of several runs of one text; ``note`` is about all of them."""
    one = outcomes[0].summary
    text = one["text"]
    lead = (
        f"{html.escape(text['name'])} ({text['characters']:,} characters, from {html.escape(text['source'])}); "
        f"{one['steps']} steps of {one['config']['batch_size']} sequences, over all ranks together. {html.escape(note)}"
    )
    headings, rows = comparison(outcomes)
    losses = figures.compared_losses_figure({each.parallel: each.metrics for each in outcomes}, text["name"])
    sections = [
        f"<p>{lead}</p>",
        table(headings, rows),
        section("Loss", picture("loss curves", losses)),
        timelines({each.title: each for each in outcomes}),
        section("Who holds what", paragraph(SHARDS), *(shard_map(each) for each in outcomes)),
        section("Placement", paragraph(PLACEMENT), *(placement_table(each.placed, each.title) for each in outcomes)),
        section("Again", f"<pre>{html.escape(command)}</pre>"),
    ]
    return page(f"{len(outcomes)} strategies compared", sections)


def comparison(outcomes: list[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table that compares runs."""
    alone = next((each.summary["val_loss"] for each in outcomes if each.parallel == "none"), None)
    rows = []
    for each in outcomes:
        summary = each.summary
        rows.append(
            [
                each.parallel,
                str(summary["world_size"]),
                str(each.nodes),
                f"{summary['tokens_per_s']:,.0f}",
                f"{summary['communication_share']:.0%}",
                str(sum(summary["collectives_per_step"].values())),
                f"{summary['val_loss']:.4f}",
                "" if alone is None else f"{summary['val_loss'] - alone:+.1e}",
            ]
        )
    headings = [
        "strategy",
        "ranks",
        "nodes",
        "tokens/s",
        "time in collectives",
        "collectives a step",
        "validation loss",
    ]
    return [*headings, "difference to none"], rows


def timelines(outcomes: dict[str, Outcome]) -> str:
    """The section of timelines, by title; empty if no run has one."""
    recorded = {title: each.timeline for title, each in outcomes.items() if each.timeline}
    if not recorded:
        return ""
    clocks = " ".join(CLOCKS[clock] for clock in dict.fromkeys(each["clock"] for each in recorded.values()))
    figure = figures.timeline_figure(recorded)
    return section("One step on every rank", paragraph(f"{TIMELINE} {clocks}"), picture("timeline", figure))


def shard_map(outcome: Outcome) -> str:
    return picture("shard map", figures.shard_figure(outcome.summary["shards"], outcome.title))


def placement_table(placed: list[Placed], title: str = "") -> str:
    rows = [[str(item.rank.rank), item.rank.host, item.slurm_node, item.rank.shard] for item in placed]
    heading = f"<h3>{html.escape(title)}</h3>\n" if title else ""
    return heading + table(["rank", "node (log)", "node (Slurm)", "what it holds"], rows)


def table(headings: list[str], rows: list[list[str]]) -> str:
    """An HTML table; a column whose cells all begin with a digit or a sign is set flush right."""
    number = [all(row[i][:1] in "+-0123456789" for row in rows) for i in range(len(headings))]

    def line(tag: str, cells: list[str]) -> str:
        attribute = ['class="number"' if flag else "" for flag in number]
        words = (
            f"<{tag} {extra}>".replace(" >", ">") + f"{html.escape(cell)}</{tag}>"
            for extra, cell in zip(attribute, cells, strict=True)
        )
        return f"<tr>{''.join(words)}</tr>"

    return f"<table>{line('th', headings)}\n" + "\n".join(line("td", row) for row in rows) + "</table>"


def section(title: str, *parts: str) -> str:
    return f"<h2>{title}</h2>\n" + "\n".join(parts)


def paragraph(text: str) -> str:
    return f"<p>{text}</p>"


def picture(name: str, figure: Figure) -> str:
    return f'<img alt="{name}" src="data:image/png;base64,{base64.b64encode(figures.png(figure)).decode()}">'


def page(title: str, sections: list[str]) -> str:
    return PAGE.format(title=html.escape(title), body="\n".join(sections))
