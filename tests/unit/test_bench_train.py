"""What make bench-train says of runs: when they reached the loss, and by how much sooner."""

from dataclasses import replace

import pytest

from dev import bench_train
from dev.bench_train import LOSS, ROWS, TimedRun, ratios, sooner_by, timed_run

CONFIG = {"batch_size": 16, "block_size": 64}


def run(losses: dict[int, float | None], seconds_a_step: float = 0.1) -> TimedRun:
    metrics = [{"step": step, "train_s": step * seconds_a_step, "val_loss": loss} for step, loss in losses.items()]
    summary = {"tokens_per_s": 1000, "communication_share": 0.2, "val_loss": metrics[-1]["val_loss"], "config": CONFIG}
    return timed_run(summary, metrics)


def test_a_run_counts_until_it_first_reached_the_loss():
    found = run({10: 2.5, 20: None, 30: LOSS, 40: 1.95, 50: 1.80})
    assert (found.reached, found.steps, found.characters) == (True, 30, 30 * 16 * 64)
    assert found.seconds == pytest.approx(3)
    assert found.loss == 1.80


def test_a_run_that_never_does_counts_whole():
    found = run({10: 2.5, 20: 2.0})
    assert (found.reached, found.steps) == (False, 20)


def test_how_much_sooner_is_a_bound_if_the_slow_way_ended_before():
    fast, slow, ended = run({10: 1.5}), run({60: 1.5}, 0.2), run({80: 2.0}, 0.2)
    assert sooner_by([slow], [fast], "steps") == "6.0"
    assert sooner_by([slow], [fast], "seconds") == "12.0"
    assert sooner_by([ended], [fast], "steps") == "at least 8.0"
    assert sooner_by([slow], [ended], "steps") == "not reached"


def test_the_table_has_both_recipes_by_both_transports():
    pairs = [(row.flags.split()[1], row.job, "--all-reduce socket" in row.flags) for row in ROWS]
    assert {
        (recipe, job, socket) for recipe in ("plain", "fast") for job in ("ddp", "tp") for socket in (False, True)
    } <= {*pairs}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_ratios_of_a_whole_benchmark():
    timed = {row.name: [run({100: 1.5})] for row in ROWS}
    timed[bench_train.ONE] = [run({900: 1.5})]
    timed[bench_train.TP + bench_train.BY_SOCKETS] = [replace(run({100: 1.5}), tokens_per_s=2000)]
    lines = ratios(timed)
    assert lines[0] == "tokens/s, sockets / gloo: plain ddp 1.00, plain tp 1.00, fast ddp 1.00, fast tp 2.00"
    assert "steps 9.0, characters 9.0, seconds 9.0" in lines[-1]
