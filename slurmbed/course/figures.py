"""Figures, drawn from the JSON files that programs of the workspace wrote; the shard map is in shard_map.py.

Only this module, shard_map and report import matplotlib, which takes half a second. Import them only when a figure is
drawn.
"""

import io
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Transform

matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})

# Okabe and Ito's colours, which the colour-blind tell apart: https://jfly.uni-koeln.de/color/
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#f0e442",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
KINDS = {"forward": SKY, "backward": BLUE, "optimizer": GREEN, "compute": BLUE, "transfer": ORANGE, "idle": "#dddddd"}
WAITS = ("transfer", "idle")
RANKS = (SKY, ORANGE, GREEN, PURPLE, YELLOW, BLUE, RED)
STYLES = ((BLACK, "-"), (ORANGE, "-"), (BLUE, "-"), (GREEN, "--"), (RED, "--"), (PURPLE, ":"), (SKY, ":"))
MOST = 8  # ranks in a picture
WIDTH = 8.0  # inches
SHARES = {"compute": 28, "transfer": 74, "idle": 108}  # column beside the lanes -> place, in points from their end


def loss_figure(metrics: list[dict], text: str) -> Figure:
    """Training and validation loss (nats per character) over steps."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([m["step"] for m in metrics], [m["train_loss"] for m in metrics], color=SKY, label="train")
    steps, losses = zip(*evaluated(metrics, "step"), strict=True)
    axes.plot(steps, losses, color=BLUE, marker="o", markersize=4, label="validation (whole text)")
    axes.annotate(f"{losses[-1]:.3f}", (steps[-1], losses[-1]), xytext=(0, 8), textcoords="offset points", ha="right")
    axes.set(xlabel="step", ylabel="loss, nats per character")
    axes.set_title(text, parse_math=False)  # it is a file's name, which may have a $ in it
    axes.legend(frameon=False)
    return figure


def evaluated(metrics: list[dict], over: str) -> list[tuple[float, float]]:
    """(the value of the field ``over``, validation loss) of the lines that have a validation loss."""
    return [(line[over], line["val_loss"]) for line in metrics if line["val_loss"] is not None]


def compared_losses_figure(runs: dict[str, list[dict]], text: str) -> Figure:
    """Losses of runs, by name: over steps, where the curves should be the same, and over seconds.

    Args:
        runs: strategy -> lines of metrics.jsonl.
        text: the text's name.
    """
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, metrics) in enumerate(runs.items()):
        color, style = STYLES[number % len(STYLES)]
        # Curves that coincide stay visible: the first is drawn widest, the last narrowest.
        width = 1.2 + 5 * (len(runs) - 1 - number) / max(1, len(runs) - 1) if number < len(runs) - 1 else 1.2
        for axes, over in ((left, "step"), (right, "elapsed_s")):
            losses = [line["train_loss"] for line in metrics]
            looks = {"color": color, "linestyle": style}
            axes.plot([m[over] for m in metrics], losses, **looks, linewidth=width if axes is left else 1.4, label=name)
            axes.plot(*zip(*evaluated(metrics, over), strict=True), color=color, marker="o", markersize=4, linestyle="")
    left.set(xlabel="step", ylabel="loss, nats per character")
    left.set_title(f"{text}: training, and ● validation", parse_math=False)
    right.set(xlabel="seconds, with evaluation and saving", title="the same over time", xlim=(0, None))
    right.legend(frameon=False)
    return figure


def shares(rank: dict) -> dict[str, float]:
    """The shares of a step that a rank of timeline.json spent in compute, transfer and idle."""
    total = rank["spans"][-1][2] - rank["spans"][0][1]
    found = dict.fromkeys(SHARES, 0.0)
    for kind, start, stop in rank["spans"]:
        found[kind if kind in WAITS else "compute"] += (stop - start) / total
    return found


def timeline_figure(timelines: dict[str, dict]) -> Figure:
    """One step of each run: a lane for each rank, on one axis of milliseconds.

    Beside each lane stand its shares of compute, transfer and idle. A thin bar below it shows collectives that overlap
    with computing.

    Args:
        timelines: title -> timeline.json.
    """
    shown = {name: timeline["ranks"][:MOST] for name, timeline in timelines.items()}
    heights = [len(ranks) + 0.4 for ranks in shown.values()]
    longest = 1e3 * max(rank["spans"][-1][2] for ranks in shown.values() for rank in ranks)
    figure = Figure(figsize=(WIDTH, 0.95 + sum(0.42 * height + 0.25 for height in heights)), layout="constrained")
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (name, ranks) in zip(grid, shown.items(), strict=True):
        for row, rank in enumerate(ranks):
            draw_lane(axes, row, rank, longest)
        left_out = len(timelines[name]["ranks"]) - len(ranks)
        more = f", the first {len(ranks)} of {len(ranks) + left_out} ranks" if left_out else ""
        axes.set_title(f"{name}, step {timelines[name]['step']}{more}", loc="left", fontsize=10)
        axes.set(xlim=(0, longest), ylim=(len(ranks) - 0.4, -0.5))
        axes.set_yticks(range(len(ranks)), [f"rank {rank['rank']}, {rank['host']}" for rank in ranks])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    for name in SHARES:
        beside_lanes(grid[0], name, name, (1, 1), grid[0].transAxes, 4)
    grid[-1].set_xlabel("milliseconds since the step began")
    used = {kind for ranks in shown.values() for rank in ranks for kind, _, _ in rank["spans"]}
    legend = [Patch(color=color, label=kind) for kind, color in KINDS.items() if kind in used]
    if any(rank["beside"] for ranks in shown.values() for rank in ranks):
        legend.append(Patch(color=RED, label="transfer beside compute (thin)"))
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    return figure


def draw_lane(axes: Axes, row: int, rank: dict, longest: float) -> None:
    """The lane of one rank: its spans, the collectives that overlap with them, and its shares."""
    for kind in KINDS:
        spans = [(1e3 * start, 1e3 * (stop - start)) for which, start, stop in rank["spans"] if which == kind]
        axes.broken_barh(spans, (row - 0.35, 0.56), color=KINDS[kind], linewidth=0)
    beside = [(1e3 * start, 1e3 * (stop - start)) for start, stop in rank["beside"]]
    axes.broken_barh(beside, (row + 0.23, 0.12), color=RED, linewidth=0)
    for name, share in shares(rank).items():
        beside_lanes(axes, name, f"{share:.0%}", (1, row), axes.get_yaxis_transform(), 0)


def beside_lanes(axes: Axes, column: str, text: str, place: tuple, transform: Transform, up: int) -> None:
    """Write into a column of SHARES, ``up`` points above the position ``place``."""
    looks: dict[str, Any] = {"fontsize": 8, "ha": "center", "va": "center" if up == 0 else "bottom"}
    axes.annotate(text, place, (SHARES[column], up), xycoords=transform, textcoords="offset points", **looks)


BUBBLE_COLORS = {"forward": "#9bb8d3", "backward": "#1f4e79", "idle": "#f3e3d0"}


def bubble_figure(measured: dict) -> Figure:
    """One step of a pipeline for each number of microbatches: a lane for each stage, time in ms from left to right.

    Args:
        measured: bubble.json, as workspace/measure/bubble.py writes it: a row for each number of microbatches, with the
            idle time (theory and measured, as shares of the step) and, for each rank, spans of (kind, microbatch,
            start, end) in seconds.
    """
    rows, hosts = measured["rows"], [rank["host"] for rank in measured["placement"]]
    names = [f"stage {stage} on {host}" for stage, host in enumerate(hosts)]
    figure = Figure(figsize=(11, 1 + (0.55 + 0.36 * len(hosts)) * len(rows)), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), squeeze=False, sharex=True)[:, 0], rows, strict=True):
        draw_stages(axes, row["spans"])
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        count = f"{row['microbatches']} microbatch{'es' * (row['microbatches'] > 1)}"
        title = f"{count}: {row['measured']:.0%} idle, theory {row['theory']:.0%}"
        axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("ms since the step began; each span has its microbatch's number")
    patches = [Patch(color=color, label=kind) for kind, color in BUBBLE_COLORS.items()]
    figure.legend(handles=patches, loc="outside upper right", ncols=3, frameon=False)
    return figure


def draw_stages(axes: Axes, stages: list[list]) -> None:
    """The lanes of one step: a bar for the whole step, idle, and on it the spans of each stage."""
    first = min(start for spans in stages for _, _, start, _ in spans)
    last = max(end for spans in stages for *_, end in spans)
    for stage, spans in enumerate(stages):
        axes.barh(stage, 1000 * (last - first), color=BUBBLE_COLORS["idle"])
        for kind, microbatch, start, end in spans:
            left, width = 1000 * (start - first), 1000 * (end - start)
            axes.barh(stage, width, left=left, color=BUBBLE_COLORS[kind], edgecolor="white", linewidth=0.5)
            color = "white" if kind == "backward" else "black"
            looks: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": color, "clip_on": True}
            axes.text(left + width / 2, stage, str(microbatch), **looks)


SIZES = [(1 << 10, "1 KiB"), (1 << 14, "16 KiB"), (1 << 18, "256 KiB"), (1 << 22, "4 MiB"), (1 << 26, "64 MiB")]
LIMITS = {"one_way": ("iperf3, one way", ":"), "both_ways": ("iperf3, each way of both at once", "--")}


def collectives_figure(measured: dict) -> Figure:
    """Latency and bus bandwidth of collectives over size, with what iperf3 measured as lines.

    Args:
        measured: collectives.json, as workspace/measure/collectives.py writes it.
    """
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    for number, label in enumerate(dict.fromkeys(row["label"] for row in measured["rows"])):
        rows = [row for row in measured["rows"] if row["label"] == label]
        sizes, style = [row["bytes"] for row in rows], {"marker": "os^Dv"[number % 5], "markersize": 4}
        latency.plot(sizes, [row["seconds"] * 1e3 for row in rows], label=label, **style)
        bandwidth.plot(sizes, [row["bus_bandwidth"] / 1e9 for row in rows], **style)
    for name, (label, dashes) in LIMITS.items():
        if limit := measured["limits"][name]:
            bandwidth.axhline(limit / 1e9, color="black", linestyle=dashes, label=label)
    largest = max(row["bytes"] for row in measured["rows"])
    ticks = {size: text for size, text in SIZES if size <= largest}
    for axes in (latency, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.set(xlabel="size of the whole tensor")
        axes.grid(alpha=0.3)
    latency.set(yscale="log", ylabel="latency, ms")
    bandwidth.set(ylim=(0, None), ylabel="bus bandwidth, GB/s")
    latency.legend(frameon=False)
    if any(measured["limits"].values()):
        bandwidth.legend(frameon=False, loc="upper left")
    figure.suptitle(f"Collectives over {measured['ranks']} nodes")
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    return buffer.getvalue()
