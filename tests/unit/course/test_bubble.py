"""The picture of a pipeline's step."""

import matplotlib.colors
import pytest

from slurmbed.course.figures import BUBBLE_COLORS, bubble_figure

# 2 stages; a microbatch takes each 1 ms forward and 2 ms backward.
ONE = [
    [("forward", 0, 5.000, 5.001), ("backward", 0, 5.004, 5.006)],
    [("forward", 0, 5.001, 5.002), ("backward", 0, 5.002, 5.004)],
]
FOUND = {
    "placement": [{"host": "node-1"}, {"host": "node-2"}],
    "rows": [{"microbatches": 1, "theory": 0.5, "measured": 0.5, "spans": ONE}],
}


def test_lanes():
    figure = bubble_figure(FOUND)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0 on node-1", "stage 1 on node-2"]
    assert axes.get_title(loc="left") == "1 microbatch: 50% idle, theory 50%"
    bars = [bar for bar in axes.patches if bar.get_width()]
    drawn = [(round(bar.get_y() + 0.4), bar.get_x(), bar.get_width()) for bar in bars]
    expected = [(0, 0, 6), (0, 0, 1), (0, 4, 2), (1, 0, 6), (1, 1, 1), (1, 2, 2)]
    for found, wanted in zip(drawn, expected, strict=True):
        assert found == pytest.approx(wanted)
    colors = [BUBBLE_COLORS[kind] for kind in ("idle", "forward", "backward")] * 2
    assert [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars] == colors
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forward", "backward", "idle"]
