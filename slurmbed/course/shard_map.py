"""The shard map: which rank holds which slice of which matrix, drawn to scale."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from slurmbed.course.figures import MOST, RANKS, WIDTH

SHARED: dict[str, Any] = {"facecolor": "#eeeeee", "edgecolor": "#888888", "hatch": "///"}  # what every rank holds
LEGIBLE = 0.055  # height of a rank's number, as a share of the tallest matrix


def shard_figure(shards: list[dict], title: str) -> Figure:
    """Embedding, matrices of the first block, and head, to scale, in the colours of the ranks that hold them.

    Where the blocks are on different ranks (pipeline) a row of all blocks says which is where.

    Args:
        shards: as for ``holders``.
    """
    parameters = {name: shard for held in shards for name, shard in held.items()}
    names = shown_parameters(parameters)
    tallest = max(parameters[name]["shape"][0] for name in names)
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    figure.suptitle(title, fontsize=11)
    shard_map = ShardMap(figure.subplots(), len(shards), tallest)
    gap, width = 0.16 * tallest, 0.0
    for name in names:
        shape = parameters[name]["shape"]
        shard_map.draw_matrix(name, shape, holders(shards, name), width)
        width += max(shape[1], 0.2 * tallest) + gap
    bottom = tallest * 1.12
    if blocks := blocks_apart(shards):
        bottom = shard_map.draw_blocks(blocks, width - gap, bottom)
    margin = 0.02 * tallest
    shard_map.axes.set(xlim=(-margin, width - gap + margin), ylim=(bottom, -0.2 * tallest), aspect="equal")
    shard_map.axes.axis("off")
    handles = legend([holders(shards, name) for name in names], len(shards))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def shown_parameters(parameters: dict) -> list[str]:
    """Names of the matrices that are shown: the embedding, those of the first block, the head."""
    first = min((name.split(".")[1] for name in parameters if name.startswith("blocks.")), key=int, default="")
    return [
        name
        for name, shard in parameters.items()
        if len(shard["shape"]) == 2 and (not name.startswith("blocks.") or name.startswith(f"blocks.{first}."))
    ]


def holders(shards: list[dict], name: str) -> dict[tuple, list[int]]:
    """Which ranks hold which slice of a parameter.

    Args:
        shards: for each rank {parameter: {"shape", "dimension", "start", "stop"}}, as in summary.json.

    Returns:
        (dimension, start, stop) -> ranks; with the dimension None for the whole parameter.
    """
    found: dict[tuple, list[int]] = {}
    for rank, held in enumerate(shards):
        shard = held.get(name)
        if shard and (shard["dimension"] is None or shard["stop"] > shard["start"]):
            found.setdefault((shard["dimension"], shard["start"], shard["stop"]), []).append(rank)
    return found


def blocks_apart(shards: list[dict]) -> list[list[int]]:
    """The ranks that hold each block; empty if all blocks are on the same ranks."""
    found: dict[int, set[int]] = {}
    for rank, held in enumerate(shards):
        for name in held:
            if name.startswith("blocks."):
                found.setdefault(int(name.split(".")[1]), set()).add(rank)
    blocks = [sorted(found[number]) for number in sorted(found)]
    return blocks if len({tuple(ranks) for ranks in blocks}) > 1 else []


class ShardMap:
    """Draws shards on axes with a unit for each row or column of a matrix."""

    def __init__(self, axes: Axes, world_size: int, tallest: int):
        self.axes, self.world_size, self.tallest = axes, world_size, tallest

    def draw_matrix(self, name: str, shape: list[int], slices: dict[tuple, list[int]], left: float) -> None:
        """A parameter's shards, its layer's name above them and its shape below; ``slices`` as ``holders`` returns."""
        rows, columns = shape
        for (dimension, start, stop), ranks in slices.items():
            x, y, width, height = left, 0, columns, rows
            if dimension == 0:
                y, height = start, stop - start
            elif dimension == 1:
                x, width = left + start, stop - start
            self.draw_shard((x, y, width, height), ranks)
        layer = name.removesuffix(".weight").split(".", 2)[-1] if name.startswith("blocks.") else name.split(".")[0]
        label = layer.replace(".", ".\n").replace("_", "_\n")
        middle, gap = left + columns / 2, 0.03 * self.tallest
        self.axes.text(middle, -gap, label, ha="center", va="bottom", fontsize=8)
        self.axes.text(middle, rows + gap, f"{rows} x {columns}", ha="center", va="top", fontsize=8)

    def draw_shard(self, box: tuple, ranks: list[int]) -> None:
        """A shard in the colour of the first rank that holds it, with the ranks' numbers if they fit.

        It is hatched if every one of several ranks holds it.

        Args:
            box: (x, y, width, height).
        """
        x, y, width, height = box
        if 1 < self.world_size == len(ranks):
            looks: dict[str, Any] = {**SHARED, "linewidth": 0.5}
        else:
            looks = {"facecolor": RANKS[ranks[0] % len(RANKS)], "edgecolor": "white", "linewidth": 1}
            legible = LEGIBLE * self.tallest
            if width >= legible * (2 * len(ranks) - 1) and height >= legible:
                self.axes.text(x + width / 2, y + height / 2, joined(ranks), ha="center", va="center", fontsize=9)
        self.axes.add_patch(Rectangle((x, y), width, height, **looks))

    def draw_blocks(self, blocks: list[list[int]], width: float, top: float) -> float:
        """A row of blocks below the matrices; returns the y at which it ends."""
        each, height = width / len(blocks), 0.06 * width
        for number, ranks in enumerate(blocks):
            self.draw_shard((number * each, top, 0.96 * each, height), ranks)
            middle = (number + 0.48) * each
            self.axes.text(middle, top + 1.1 * height, f"block {number}", ha="center", va="top", fontsize=8)
        return top + 2.1 * height


def legend(parameters: list[dict[tuple, list[int]]], world_size: int) -> list[Patch]:
    """A patch for each group of ranks that shares a slice, and one for what every rank holds.

    Args:
        parameters: what ``holders`` returned for each parameter.
    """
    groups = sorted({tuple(ranks) for slices in parameters for ranks in slices.values()})
    some = [ranks for ranks in groups if len(ranks) < world_size or world_size == 1]
    patches = [
        Patch(color=RANKS[ranks[0] % len(RANKS)], label=f"rank{'s' * (len(ranks) > 1)} {joined(ranks)}")
        for ranks in some[:MOST]
    ]
    return [*patches, Patch(**SHARED, label="every rank")] if len(some) < len(groups) else patches


def joined(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
