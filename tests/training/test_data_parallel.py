"""Data parallelism, alone and with tensor parallelism, against one process on the same batch of 5 sequences."""

from unittest.mock import patch

import pytest
import torch

import ddp
import hybrid
import none
from breaks import BREAKS
from measure import measure
from processes import spawn
from test_tensor_parallel import TOLERANCE, worst

ACCUMULATED = {"batch_size": 10, "accumulate": 2}
MISTAKES = [name for name, mistake in BREAKS.items() if "ddp" in mistake.strategies]


def measure_ddp(rank, world_size):
    found = {"plain": measure(ddp, "float64"), "pieces": measure(ddp, "float64", **ACCUMULATED)}
    for megabytes in (25, 0.5):  # of a model of 3 MB
        found[megabytes] = measure(ddp, "float64", channels=128, bucket_mb=megabytes)
    for name in MISTAKES:
        with patch.object(*BREAKS[name].target(), BREAKS[name].instead):
            found[name] = measure(ddp, "float64")
    return found


def measure_hybrid(rank, world_size):
    return {"plain": measure(hybrid, "float64"), "pieces": measure(hybrid, "float64", **ACCUMULATED)}


@pytest.fixture(scope="module")
def whole():
    return {"plain": measure(none, "float64"), "pieces": measure(none, "float64", **ACCUMULATED)}


@pytest.fixture(scope="module", params=[(measure_ddp, 2), (measure_ddp, 3), (measure_hybrid, 4)], ids=str)
def ranks(request, tmp_path_factory):
    worker, world_size = request.param
    return spawn(worker, world_size, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", ["plain", "pieces"])
def test_equals_one_process_on_the_same_batch(ranks, whole, case):
    """5 sequences on 2, 3 and 2 x 2 ranks: shares are unequal. And 10 in two pieces: no_sync until the last."""
    expected = whole[case]
    greatest = max(tensor.abs().max() for tensor in expected["gradients"].values())
    for rank in ranks:
        torch.testing.assert_close(rank[case]["loss"], expected["loss"], rtol=1e-13, atol=0)
        torch.testing.assert_close(rank[case]["norm"], expected["norm"], rtol=1e-12, atol=0)
        assert worst(rank[case]["gradients"], expected["gradients"], greatest) <= TOLERANCE["float64"]["gradients"]
        assert worst(rank[case]["parameters"], expected["parameters"]) <= TOLERANCE["float64"]["parameters"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return spawn(measure_ddp, 2, tmp_path_factory.mktemp("two"))


def test_replicas_stay_equal_to_the_bit(two):
    assert two[0]["plain"]["replicas"]
    assert worst(two[1]["plain"]["replicas"], two[0]["plain"]["replicas"]) == 0


def test_smaller_buckets_are_more_and_sum_the_same(two):
    """After the first step, in which torch learns in which order gradients come."""
    assert two[0][0.5]["last calls"]["backward"] > two[0][25]["last calls"]["backward"] == 1
    assert worst(two[0][0.5]["parameters"], two[0][25]["parameters"]) < 1e-12


def test_accumulation_sends_no_more_than_one_piece(two):
    assert two[0]["pieces"]["calls"]["backward"] == two[0]["plain"]["calls"]["backward"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(two, whole, mistake):
    expected = whole["plain"]
    greatest = max(tensor.abs().max() for tensor in expected["gradients"].values())
    found = max(worst(rank[mistake]["gradients"], expected["gradients"], greatest) for rank in two)
    assert found > 1e6 * TOLERANCE["float64"]["gradients"], f"{mistake} changes gradients by {found:.1e} only"
    apart = worst(two[1][mistake]["replicas"], two[0][mistake]["replicas"])
    assert (apart > 0) == (mistake == "unsynced"), "only without a sum do the replicas drift apart"
