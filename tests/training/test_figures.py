"""Tokens a second and the share of communication, beside a clock of the test's own, which only the test moves on."""

import json
import time
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

import pytest
import torch.distributed as dist

import parallel
from processes import spawn
from ranks.sockets import Peers
from run.journal import Journal
from steps import STEPS, start

COMPUTING, EXCHANGE = 2.0, 0.25  # seconds
EXCHANGES = {"socket": ((Peers, "exchange"),), "backend": ((dist, "all_reduce"), (dist, "all_gather"))}


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


def timed(rank, world_size, strategy, transport, folder):
    """A run's figures, and how often its steps exchanged something."""
    strategy, clock = parallel.load(strategy), Clock()
    trainer = start(strategy, "float32", all_reduce=transport)
    with ExitStack() as patched:
        patched.enter_context(patch.object(time, "perf_counter", lambda: clock.now))
        patched.enter_context(patch.object(strategy, "backward", clock.computing(strategy.backward)))
        for where, name in EXCHANGES[transport]:
            patched.enter_context(patch.object(where, name, clock.exchanging(getattr(where, name))))
        journal = Journal(folder, trainer.config, rank == 0, first_step=0)
        for step in range(1, STEPS + 1):
            trainer.step(step, journal)
        exchanges = clock.exchanges
        journal.log(STEPS, None, trainer.whole_loss)
    return journal.figures(), exchanges


@pytest.mark.parametrize("transport", EXCHANGES)
@pytest.mark.parametrize("strategy", ["ddp", "tp"])
def test_figures_of_two_ranks(tmp_path, strategy, transport):
    worker = partial(timed, strategy=strategy, transport=transport, folder=tmp_path)
    worker.__name__ = "timed"
    for figures, exchanges in spawn(worker, 2, tmp_path):
        assert exchanges >= STEPS
        seconds = STEPS * COMPUTING + exchanges * EXCHANGE
        assert figures["tokens_per_s"] == pytest.approx(STEPS * 5 * 16 / seconds)  # of the batch, not of each rank
        assert figures["communication_s"] == pytest.approx(exchanges * EXCHANGE)
        assert figures["communication_share"] == pytest.approx(exchanges * EXCHANGE / seconds)
        line = json.loads((tmp_path / "metrics.jsonl").read_text())
        assert (line["tokens_per_s"], line["train_s"]) == pytest.approx((figures["tokens_per_s"], seconds))
