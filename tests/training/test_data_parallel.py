"""Data parallelism, alone and with tensor parallelism, against one process on the same batch of 5 sequences."""

from unittest.mock import patch

import pytest

import ddp
import hybrid
import none
from agreement import TOLERANCE, assert_same_steps, gradient_error, worst
from breaks import BREAKS
from measure import measure
from processes import spawn

ACCUMULATED = {"batch_size": 10, "accumulate": 2}
MISTAKES = [name for name, mistake in BREAKS.items() if "ddp" in mistake.strategies]


def measure_ddp(rank, world_size):
    found = {"plain": measure(ddp, "float64"), "accumulated": measure(ddp, "float64", **ACCUMULATED)}
    for megabytes in (25, 0.5):  # of a model of 3 MB
        found[megabytes] = measure(ddp, "float64", channels=128, bucket_mb=megabytes)
    for name in MISTAKES:
        with patch.object(*BREAKS[name].target(), BREAKS[name].instead):
            found[name] = measure(ddp, "float64")
    return found


def measure_hybrid(rank, world_size):
    return {"plain": measure(hybrid, "float64"), "accumulated": measure(hybrid, "float64", **ACCUMULATED)}


@pytest.fixture(scope="module")
def whole():
    return {"plain": measure(none, "float64"), "accumulated": measure(none, "float64", **ACCUMULATED)}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return spawn(measure_ddp, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return spawn(measure_ddp, 3, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory):
    return spawn(measure_hybrid, 4, tmp_path_factory.mktemp("two-by-two"))


@pytest.mark.parametrize("case", ["plain", "accumulated"])
@pytest.mark.parametrize("ranks", ["two", "three", "two_by_two"])
def test_equals_one_process_on_the_same_batch(ranks, case, whole, request):
    """5 sequences on 2, 3 and 2 x 2 ranks: unequal shares. And 10, accumulated in two steps: no_sync in the first."""
    for rank in request.getfixturevalue(ranks):
        assert_same_steps(rank[case], whole[case], "float64")


def test_replicas_stay_equal_to_the_bit(two):
    assert two[0]["plain"]["replicas"]
    assert worst(two[1]["plain"]["replicas"], two[0]["plain"]["replicas"]) == 0


def test_smaller_buckets_are_more_and_sum_the_same(two):
    """After the first step, in which torch learns in which order gradients come."""
    assert two[0][0.5]["last calls"]["backward"] > two[0][25]["last calls"]["backward"] == 1
    assert worst(two[0][0.5]["parameters"], two[0][25]["parameters"]) < 1e-12


def test_accumulation_sends_no_more_than_one_backward(two):
    assert two[0]["accumulated"]["calls"]["backward"] == two[0]["plain"]["calls"]["backward"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(two, whole, mistake):
    found = max(gradient_error(rank[mistake], whole["plain"]) for rank in two)
    assert found > 1e6 * TOLERANCE["float64"]["gradients"], f"{mistake} changes gradients by {found:.1e} only"
    apart = worst(two[1][mistake]["replicas"], two[0][mistake]["replicas"])
    assert (apart > 0) == (mistake == "unsynced"), "only without a sum do the replicas drift apart"
