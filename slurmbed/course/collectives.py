"""`make bench-collectives`: the bandwidth of collectives between two nodes, by size, compared with iperf3's."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course.follow import complete, require_exclusive_workspace

SHOWN = (1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 26)  # bytes: rows of the table; the plot shows all sizes


def bench(cluster: Cluster, console: Console, largest: int | None) -> Path:
    """Submit the job, follow it, print its table, draw its plot; returns the plot's path.

    Args:
        largest: bytes of the largest tensor; the program's default if None.

    Raises:
        JobFailed: with state, exit code and last log lines.
    """
    require_exclusive_workspace(cluster)
    arguments = ["jobs/collectives.sbatch", *(["--largest", str(largest)] if largest else [])]
    job_run, _ = complete(cluster, console, arguments)
    measured = job_run.results("collectives.json")
    console.print(table(measured))
    from slurmbed.course import figures  # it imports matplotlib, which takes half a second

    plot = figures.png(figures.collectives_figure(measured))
    path = cluster.write(f"runs/{job_run.job_id}/collectives.png", plot)
    console.print(f"plot: {path}", soft_wrap=True)
    return path


def table(measured: dict) -> Table:
    """A row for each collective and each size of SHOWN.

    Args:
        measured: collectives.json, as workspace/measure/collectives.py writes it.
    """
    shown = Table(title=f"between {measured['ranks']} nodes")
    for heading in ("collective", "bytes", "latency, ms", "bus GB/s", "of iperf3's limit"):
        left = heading == "collective"
        shown.add_column(heading, justify="left" if left else "right", no_wrap=left)
    for row in sorted(measured["rows"], key=lambda row: row["label"]):
        if row["bytes"] in SHOWN:
            share = "-" if row["of_limit"] is None else f"{row['of_limit']:.2f}"
            cells = f"{row['seconds'] * 1e3:.2f}", f"{row['bus_bandwidth'] / 1e9:.3f}"
            shown.add_row(row["label"], f"{row['bytes']:,}", *cells, share)
    return shown
