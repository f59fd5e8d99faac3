"""Programs that run on the host and find Slurm's commands on PATH."""

import re

import pytest


def test_submitit(follow):
    said, _ = follow("submitit")
    assert said.splitlines()[-1] == "[(12, 'node-1'), (12, 'node-2')]"


def test_simple_slurm(follow):
    said, _ = follow("simple_slurm")
    whole = said.splitlines()[-5:]
    assert whole[:3] == ["part 0", "part 1", "part 2"]
    assert sorted(whole[3:]) == ["0: node-1", "1: node-2"]


@pytest.mark.client
def test_pysqa(follow):
    said, _ = follow("pysqa")
    assert re.fullmatch(r"submitted \d+\n(node-[12]\n){2}\n", said)
