"""The pictures of a report, from what a run wrote: losses, the timeline of a step, who holds what. Matplotlib only."""

import io

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
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
    axes.set(xlabel="step", ylabel="loss, nats per character", title=text)
    axes.legend(frameon=False)
    return figure


def evaluated(metrics: list[dict], over: str) -> list[tuple[float, float]]:
    """(what ``over`` names, validation loss) of the lines that have one."""
    return [(line[over], line["val_loss"]) for line in metrics if line["val_loss"] is not None]


def compared_losses_figure(runs: dict[str, list[dict]], text: str) -> Figure:
    """Losses of runs, by name: over steps, where they should be one, and over seconds, where the fastest wins."""
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, metrics) in enumerate(runs.items()):
        color, style = STYLES[number % len(STYLES)]
        # Curves that fall together stay visible: the first are drawn wide, the last narrow.
        width = 1.2 + 5 * (len(runs) - 1 - number) / max(1, len(runs) - 1) if number < len(runs) - 1 else 1.2
        for axes, over in ((left, "step"), (right, "elapsed_s")):
            losses = [line["train_loss"] for line in metrics]
            looks = {"color": color, "linestyle": style}
            axes.plot([m[over] for m in metrics], losses, **looks, linewidth=width if axes is left else 1.4, label=name)
            axes.plot(*zip(*evaluated(metrics, over), strict=True), color=color, marker="o", markersize=4, linestyle="")
    left.set(xlabel="step", ylabel="loss, nats per character", title=f"{text}: training, and ● validation")
    right.set(xlabel="seconds, with evaluation and saving", title="the same over time", xlim=(0, None))
    right.legend(frameon=False)
    return figure


def shares(rank: dict) -> dict[str, float]:
    """Of a lane of timeline.json: the shares of the step in compute, transfer and idle."""
    total = rank["spans"][-1][2] - rank["spans"][0][1]
    found = dict.fromkeys(SHARES, 0.0)
    for kind, start, stop in rank["spans"]:
        found[kind if kind in WAITS else "compute"] += (stop - start) / total
    return found


def timeline_figure(timelines: dict[str, dict]) -> Figure:
    """Lanes of one step on every rank, by name of the run, all on one axis of milliseconds.

    Each lane has its shares of compute, transfer and idle beside it, and below it, thin, the collectives that overlap.
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
    """One rank: its spans, the collectives beside them, and its shares."""
    for kind in KINDS:
        spans = [(1e3 * start, 1e3 * (stop - start)) for which, start, stop in rank["spans"] if which == kind]
        axes.broken_barh(spans, (row - 0.35, 0.56), color=KINDS[kind], linewidth=0)
    beside = [(1e3 * start, 1e3 * (stop - start)) for start, stop in rank["beside"]]
    axes.broken_barh(beside, (row + 0.23, 0.12), color=RED, linewidth=0)
    for name, share in shares(rank).items():
        beside_lanes(axes, name, f"{share:.0%}", (1, row), axes.get_yaxis_transform(), 0)


def beside_lanes(axes: Axes, column: str, text: str, place: tuple, transform: Transform, up: int) -> None:
    """Write into a column of SHARES, ``up`` points above the place."""
    looks = {"fontsize": 8, "ha": "center", "va": "center" if up == 0 else "bottom"}
    axes.annotate(text, place, (SHARES[column], up), xycoords=transform, textcoords="offset points", **looks)


def shown_parameters(shards: dict) -> list[str]:
    """Names of the matrices that a shard map shows: the embedding, those of the first block, the head."""
    first = min((name.split(".")[1] for name in shards if name.startswith("blocks.")), key=int, default="")
    return [
        name
        for name, place in shards.items()
        if len(place["shape"]) == 2 and (not name.startswith("blocks.") or name.startswith(f"blocks.{first}."))
    ]


def holders(shards: list[dict], name: str) -> dict[tuple, list[int]]:
    """Which ranks hold which part of a parameter: (dimension, start, stop) -> ranks; (None, 0, 0) is all of it."""
    found: dict[tuple, list[int]] = {}
    for rank, names in enumerate(shards):
        if place := names.get(name):
            part = (place["dimension"], place["start"], place["stop"])
            if place["dimension"] is None or place["stop"] > place["start"]:
                found.setdefault(part, []).append(rank)
    return found


def shard_figure(shards: list[dict], title: str) -> Figure:
    """Embedding, matrices of the first block, and head, to scale, in the colours of the ranks that hold them.

    Where the blocks are on different ranks (pipeline) a row of all blocks says which is where.
    """
    everything = {name: place for names in shards for name, place in names.items()}
    names = shown_parameters(everything)
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11)
    axes.set_aspect("equal")
    tallest = max(everything[name]["shape"][0] for name in names)
    gap, left = 0.16 * tallest, 0.0
    for name in names:
        rows, columns = everything[name]["shape"]
        for (dimension, start, stop), ranks in holders(shards, name).items():
            x, y, wide, high = left, 0, columns, rows
            if dimension == 0:
                y, high = start, stop - start
            elif dimension == 1:
                x, wide = left + start, stop - start
            draw_part(axes, (x, y, wide, high), ranks, len(shards))
        layer = name.removesuffix(".weight").split(".", 2)[-1] if name.startswith("blocks.") else name.split(".")[0]
        words = layer.replace(".", ".\n").replace("_", "_\n")
        axes.text(left + columns / 2, -0.03 * tallest, words, ha="center", va="bottom", fontsize=8)
        axes.text(left + columns / 2, rows + 0.03 * tallest, f"{rows} x {columns}", ha="center", va="top", fontsize=8)
        left += max(columns, 0.2 * tallest) + gap
    bottom = tallest * 1.12
    if blocks := blocks_apart(shards):
        bottom = draw_blocks(axes, blocks, len(shards), left - gap, bottom)
    axes.set(xlim=(-0.02 * tallest, left - gap + 0.02 * tallest), ylim=(bottom, -0.2 * tallest))
    axes.axis("off")
    whole = Patch(facecolor="#eeeeee", edgecolor="#888888", hatch="///", label="every rank")
    held = sorted({tuple(ranks) for name in names for ranks in holders(shards, name).values()})
    some = [ranks for ranks in held if len(ranks) < len(shards) or len(shards) == 1]
    legend = [
        Patch(color=RANKS[ranks[0] % len(RANKS)], label=f"rank{'s' * (len(ranks) > 1)} {joined(ranks)}")
        for ranks in some[:MOST]
    ]
    legend += [whole] if len(some) < len(held) else []
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    return figure


LEGIBLE = 20  # rows or columns of a matrix that the number of a rank fits into


def draw_part(axes: Axes, box: tuple, ranks: list[int], world_size: int) -> None:
    """A part of a matrix, in the colour of the first of the ranks that hold it; hatched where all of several do."""
    x, y, wide, high = box
    if 1 < world_size == len(ranks):
        looks = {"facecolor": "#eeeeee", "edgecolor": "#888888", "hatch": "///", "linewidth": 0.5}
    else:
        looks = {"facecolor": RANKS[ranks[0] % len(RANKS)], "edgecolor": "white", "linewidth": 1}
        if wide >= LEGIBLE * (2 * len(ranks) - 1) and high >= LEGIBLE:
            axes.text(x + wide / 2, y + high / 2, joined(ranks), ha="center", va="center", fontsize=9)
    axes.add_patch(Rectangle((x, y), wide, high, **looks))


def joined(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def blocks_apart(shards: list[dict]) -> list[list[int]]:
    """The ranks that hold each block, if they are not the same for all of them."""
    found: dict[int, set[int]] = {}
    for rank, names in enumerate(shards):
        for name in names:
            if name.startswith("blocks."):
                found.setdefault(int(name.split(".")[1]), set()).add(rank)
    blocks = [sorted(found[number]) for number in sorted(found)]
    return blocks if len({tuple(ranks) for ranks in blocks}) > 1 else []


def draw_blocks(axes: Axes, blocks: list[list[int]], world_size: int, width: float, top: float) -> float:
    """A row of blocks below the matrices; returns where it ends."""
    each, high = width / len(blocks), 0.06 * width
    for number, ranks in enumerate(blocks):
        draw_part(axes, (number * each, top, 0.96 * each, high), ranks, world_size)
        axes.text((number + 0.48) * each, top + 1.1 * high, f"block {number}", ha="center", va="top", fontsize=8)
    return top + 2.1 * high


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    return buffer.getvalue()
