"""Programs that run on the host and find Slurm's commands on PATH."""

import pytest


def test_submitit(follow):
    said = follow("submitit")
    assert said[-1] == "[(12, 'node-1'), (12, 'node-2')]"


def test_simple_slurm(follow):
    said = follow("simple_slurm")
    assert said[-5:-2] == ["part 0", "part 1", "part 2"]
    assert sorted(said[-2:]) == ["0: node-1", "1: node-2"]


@pytest.mark.client
def test_pysqa(follow):
    said = follow("pysqa")
    assert said[0].startswith("submitted ")
    assert {*said[1:3]} <= {"node-1", "node-2"}
