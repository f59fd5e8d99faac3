"""Tokens a second and the share of communication, beside a clock of the test's own, which only the test moves on."""

import json
import time
from functools import partial
from unittest.mock import patch

import pytest

import parallel
from processes import spawn
from ranks.sockets import Peers
from run.journal import Journal
from steps import STEPS, start

COMPUTING, EXCHANGE = 2.0, 0.25  # seconds


class Clock:
    def __init__(self):
        self.now, self.exchanges = 1000.0, 0

    def computing(self, function):
        def wrapper(*arguments, **options):
            self.now += COMPUTING
            return function(*arguments, **options)

        return wrapper

    def exchanging(self, function):
        def wrapper(*arguments, **options):
            self.now += EXCHANGE
            self.exchanges += 1
            return function(*arguments, **options)

        return wrapper


def timed(rank, world_size, strategy, folder):
    """A run's figures, and how often its steps exchanged something."""
    strategy, clock = parallel.load(strategy), Clock()
    trainer = start(strategy, "float32")
    with (
        patch.object(time, "perf_counter", lambda: clock.now),
        patch.object(strategy, "backward", clock.computing(strategy.backward)),
        patch.object(Peers, "exchange", clock.exchanging(Peers.exchange)),
    ):
        journal = Journal(folder, trainer.config, rank == 0, first_step=0)
        for step in range(1, STEPS + 1):
            trainer.step(step, journal)
        exchanges = clock.exchanges
        journal.log(STEPS, None, trainer.whole_loss)
    return journal.figures(), exchanges


@pytest.mark.parametrize("strategy", ["ddp", "tp"])
def test_figures_of_two_ranks(tmp_path, strategy):
    worker = partial(timed, strategy=strategy, folder=tmp_path)
    worker.__name__ = "timed"
    for figures, exchanges in spawn(worker, 2, tmp_path):
        assert exchanges >= STEPS
        seconds = STEPS * COMPUTING + exchanges * EXCHANGE
        assert figures["tokens_per_s"] == pytest.approx(STEPS * 5 * 16 / seconds)  # of the batch, not of each rank
        assert figures["communication_s"] == pytest.approx(exchanges * EXCHANGE)
        assert figures["communication_share"] == pytest.approx(exchanges * EXCHANGE / seconds)
        line = json.loads((tmp_path / "metrics.jsonl").read_text())
        assert (line["tokens_per_s"], line["train_s"]) == pytest.approx((figures["tokens_per_s"], seconds))
