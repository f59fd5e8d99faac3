"""The learning rate of each step, against values that were worked out by hand."""

import math

import pytest

from config import Config
from train import schedule

HALF = math.sqrt(1 / 2)  # cos(45 degrees)
# Flags -> the share of the highest rate in each step. The step after the last would be at `final_lr`.
SHARES = {
    ("linear", 2, 0.0, 6): [1 / 2, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5],
    ("linear", 0, 0.5, 3): [7 / 8, 6 / 8, 5 / 8],
    ("cosine", 1, 0.0, 4): [1, (1 + HALF) / 2, 1 / 2, (1 - HALF) / 2],
    ("cosine", 0, 0.1, 1): [0.1 + 0.9 / 2],
    ("linear", 4, 0.0, 3): [1 / 4, 2 / 4, 3 / 4],
}


@pytest.mark.parametrize(("flags", "shares"), SHARES.items(), ids=str)
def test_the_share_of_each_step(flags, shares):
    decay, warmup, final_lr, steps = flags
    config = Config(decay=decay, warmup=warmup, final_lr=final_lr, steps=steps)
    assert [schedule(step, config) for step in range(1, steps + 1)] == pytest.approx(shares)
