"""Which node has which task."""

import pytest

from slurmbed.slurm.layout import parse_layout, spread


def test_the_node_of_each_task(recorded):
    assert parse_layout(recorded("layout.txt")) == {0: "node-1", 1: "node-1", 2: "node-2"}


def test_tasks_with_commas_and_spans():
    text = "\tNode 0 (node-1), 3 task(s): 0-2 \n\tNode 1 (node-2), 3 task(s): 3,5-6 \n"
    assert parse_layout(text) == {0: "node-1", 1: "node-1", 2: "node-1", 3: "node-2", 5: "node-2", 6: "node-2"}
    assert parse_layout("sattach: error: Invalid job id") == {}


@pytest.mark.parametrize(
    ("tasks", "distribution", "layout"),
    [
        (4, "Block", "aabb"),
        (5, "Block", "aaabb"),
        (4, "BCyclic", "aabb"),
        (5, "Cyclic", "ababa"),
        (4, "CBlock", "abab"),
        (4, "Plane", None),
        (1, "Unknown", None),
    ],
)
def test_tasks_spread_over_two_nodes(tasks, distribution, layout):
    assert spread("ab", tasks, distribution) == (list(layout) if layout else None)


def test_no_nodes_have_no_layout():
    assert spread([], 2, "Block") is None
