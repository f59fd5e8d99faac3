"""`make bench-collectives`: how fast two nodes talk, by size, beside iperf3's limit; a table and a plot."""

import argparse
from dataclasses import replace

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.host import whole_number
from slurmbed.cluster.plan import Settings
from slurmbed.course.figures import png
from slurmbed.course.training import check_alone, complete, described

SHOWN = (1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 26)  # bytes: rows of the table; the plot has them all
# Ticks of the axis.
UNITS = [(1 << 10, "1 KiB"), (1 << 14, "16 KiB"), (1 << 18, "256 KiB"), (1 << 22, "4 MiB"), (1 << 26, "64 MiB")]
LIMITS = {"one_way": ("iperf3, one way", ":"), "both_ways": ("iperf3, each way of both at once", "--")}


def main(args: argparse.Namespace) -> None:
    """Run jobs/collectives.sbatch on the cluster, starting it if need be; print a table, draw a plot."""
    words = ["--largest", str(whole_number("LARGEST", args.largest, 1 << 10, 1 << 30))] if args.largest else []
    console = Console()
    settings = Settings(name=args.name or "slurmbed", adopt=args.adopt)
    cluster = Cluster(settings, lambda text: console.print(text, style="dim"))
    cluster.ensure_engine()
    cluster.require_own()
    if not cluster.is_running() or cluster.working_nodes() < 2:
        cluster = Cluster(replace(settings, least_nodes=2), cluster.say)
        cluster.up()
    check_alone(cluster.name, cluster.workspace())
    files, _ = complete(cluster, console, ["jobs/collectives.sbatch", *words], described)
    found = files.results("collectives.json")
    console.print(table(found))
    path = cluster.write(f"runs/{files.job_id}/collectives.png", png(draw(found)))
    console.print(f"plot: {path}", soft_wrap=True)


def table(found: dict) -> Table:
    """A row for each collective and shown size of a collectives.json."""
    shown = Table(title=f"between {found['ranks']} nodes")
    for heading in ("collective", "bytes", "latency, ms", "bus GB/s", "of iperf3's limit"):
        left = heading == "collective"
        shown.add_column(heading, justify="left" if left else "right", no_wrap=left)
    for row in sorted(found["rows"], key=lambda row: row["label"]):
        if row["bytes"] in SHOWN:
            share = "-" if row["of_limit"] is None else f"{row['of_limit']:.2f}"
            figures = f"{row['seconds'] * 1e3:.2f}", f"{row['bus_bandwidth'] / 1e9:.3f}"
            shown.add_row(row["label"], f"{row['bytes']:,}", *figures, share)
    return shown


def draw(found: dict) -> Figure:
    """Latency and bus bandwidth over size, with what iperf3 found as lines."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    for number, label in enumerate(dict.fromkeys(row["label"] for row in found["rows"])):
        rows = [row for row in found["rows"] if row["label"] == label]
        sizes, style = [row["bytes"] for row in rows], {"marker": "os^Dv"[number % 5], "markersize": 4}
        latency.plot(sizes, [row["seconds"] * 1e3 for row in rows], label=label, **style)
        bandwidth.plot(sizes, [row["bus_bandwidth"] / 1e9 for row in rows], **style)
    for name, (label, dashes) in LIMITS.items():
        if limit := found["limits"][name]:
            bandwidth.axhline(limit / 1e9, color="black", linestyle=dashes, label=label)
    largest = max(row["bytes"] for row in found["rows"])
    ticks = [size for size, _ in UNITS if size <= largest]
    for axes in (latency, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [text for size, text in UNITS if size <= largest])
        axes.set(xlabel="size of the whole tensor")
        axes.grid(alpha=0.3)
    latency.set(yscale="log", ylabel="latency, ms")
    bandwidth.set(ylim=(0, None), ylabel="bus bandwidth, GB/s")
    latency.legend(frameon=False)
    if any(found["limits"].values()):
        bandwidth.legend(frameon=False, loc="upper left")
    figure.suptitle(f"Collectives over {found['ranks']} nodes")
    return figure
