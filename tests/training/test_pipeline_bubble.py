"""bubble.py: its figures from spans that are known, and the program itself."""

import json

import pytest

from measure import bubble
from processes import succeed

# 2 stages, 2 microbatches, 1 s forward and 2 s backward each: theory's 3 rounds of 3 s.
TWO = [
    [("forward", 0, 0, 1), ("forward", 1, 1, 2), ("backward", 0, 4, 6), ("backward", 1, 7, 9)],
    [("forward", 0, 1, 2), ("backward", 0, 2, 4), ("forward", 1, 4, 5), ("backward", 1, 5, 7)],
]


def test_the_ideal_pipeline_is_as_idle_as_theory_says():
    disturbed = [[(kind, number, 2 * start, 2 * end) for kind, number, start, end in lane] for lane in reversed(TWO)]
    row = bubble.row(2, [disturbed, TWO, disturbed])
    assert (row["theory"], row["measured"], row["step_s"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3), 9)
    assert row["spans"] == TWO
    assert row["in_flight"] == 2


def test_the_program(tmp_path):
    flags = ("--layers=2", "--channels=32", "--block-size=16", "--batch-size=8", "--run-dir", tmp_path)
    ranks = succeed(*flags, world_size=2, program="from measure import bubble; bubble.main()")
    found = json.loads((tmp_path / "bubble.json").read_text())
    assert [each["rank"] for each in found["placement"]] == [0, 1]
    assert [row["microbatches"] for row in found["rows"]][-3:] == [2, 4, 8]  # newer torch refuses 1 on 2 stages
    for row in found["rows"]:
        assert row["theory"] == 1 / (row["microbatches"] + 1)
        assert 0 < row["measured"] < 1
        assert [len(lane) for lane in row["spans"]] == [2 * row["microbatches"]] * 2
        assert row["in_flight"] == min(2, row["microbatches"])
    assert "theory   measured" in ranks[0].stdout
    assert ranks[1].stdout.count("\n") == 1
