"""What `make bench-collectives` shows of a measurement: a table of some sizes, and a plot of all."""

import io

from rich.console import Console

from slurmbed.course.collectives import table
from slurmbed.course.figures import collectives_figure

ROWS = [
    {"label": "all_reduce", "bytes": 1 << 10, "seconds": 2e-3, "bus_bandwidth": 5e5, "of_limit": 0.25},
    {"label": "all_reduce", "bytes": 1 << 12, "seconds": 3e-3, "bus_bandwidth": 1e6, "of_limit": 0.5},
    {"label": "broadcast", "bytes": 1 << 10, "seconds": 1e-3, "bus_bandwidth": 1e6, "of_limit": None},
]
MEASURED = {"ranks": 2, "limits": {"one_way": 2e9, "both_ways": None}, "rows": ROWS}


def test_the_table():
    console = Console(file=io.StringIO(), width=100)
    console.print(table(MEASURED))
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines()]
    assert [row for row in shown if row] == [
        ["all_reduce", "1,024", "2.00", "0.001", "0.25"],
        ["broadcast", "1,024", "1.00", "0.001", "-"],
    ]


def test_the_plot():
    latency, bandwidth = collectives_figure(MEASURED).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in latency.get_lines()}
    assert lines == {"all_reduce": [[1024, 2], [4096, 3]], "broadcast": [[1024, 1]]}
    assert [text.get_text() for text in bandwidth.get_legend().get_texts()] == ["iperf3, one way"]
    assert bandwidth.get_lines()[-1].get_ydata()[0] == 2
    assert [label.get_text() for label in latency.get_xticklabels()] == ["1 KiB"]
