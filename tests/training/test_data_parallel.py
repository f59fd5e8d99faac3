"""Data parallelism, alone and with tensor parallelism, against one process on the same batch of 5 sequences."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from agreement import TOLERANCE, assert_same_steps, gradient_error, worst
from parallel import ddp, hybrid, none
from parallel.breaks import BREAKS
from processes import spawn
from ranks import communication
from steps import LAYERS, measure, start

# 5 sequences on 2 or 3 ranks: unequal shares. 10, accumulated in three steps: no_sync in the first two.
CASES = {
    "plain": {},
    "fast": {"recipe": "fast"},
    "accumulated": {"batch_size": 10, "accumulate": 3},
    "by sockets": {"all_reduce": "socket"},
    "accumulated by sockets": {"batch_size": 10, "accumulate": 3, "all_reduce": "socket"},
    "fast, accumulated by sockets": {"recipe": "fast", "batch_size": 10, "accumulate": 3, "all_reduce": "socket"},
}
# On 6 ranks: 3 copies of a model on 2 ranks, and 2 copies of one on 3.
SIX = {"heads": 6, "channels": 36}
MESHES = {
    f"{case}, rows of {size}": {**SIX, "tp_size": size, **CASES[case]}
    for case in ("plain", "fast", "accumulated by sockets", "fast, accumulated by sockets")
    for size in (2, 3)
}
MISTAKES = [name for name, mistake in BREAKS.items() if "ddp" in mistake.strategies]


def measure_ddp(rank, world_size):
    found = {name: measure(ddp, "float64", **case) for name, case in CASES.items()}
    if world_size == 2 and communication.sums(torch.bfloat16, "cpu"):
        found["rounded"] = measure(ddp, "float32", wire="bfloat16")
    for megabytes in (25, 0.5):  # of a model of 3 MB
        found[megabytes] = measure(ddp, "float64", channels=128, bucket_mb=megabytes)
    for name in MISTAKES:
        with patch.object(*BREAKS[name].target(), BREAKS[name].instead):
            found[name] = measure(ddp, "float64")
    return found


def measure_hybrid(rank, world_size):
    found = {name: measure(hybrid, "float64", **case) for name, case in MESHES.items()}
    for size in (2, 3):
        model = start(hybrid, "float64", **SIX, tp_size=size).model
        groups = (model.module.group, model.process_group)
        found[size] = [dist.get_process_group_ranks(group) for group in groups]
    return found


@pytest.fixture(scope="module")
def whole():
    return {name: measure(none, "float64", **case) for name, case in (CASES | MESHES).items()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return spawn(measure_ddp, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return spawn(measure_ddp, 3, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    return spawn(measure_hybrid, 6, tmp_path_factory.mktemp("six"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", ["two", "three"])
def test_equals_one_process_on_the_same_batch(ranks, case, whole, request):
    for rank in request.getfixturevalue(ranks):
        assert_same_steps(rank[case], whole[case], "float64")


@pytest.mark.parametrize("case", MESHES)
def test_a_mesh_equals_one_process_on_the_same_batch(six, case, whole):
    for rank in six:
        assert_same_steps(rank[case], whole[case], "float64")


def test_a_mesh_sums_gradients_once_a_step(six):
    """Beside what tensor parallelism sums backward: twice a layer, and before the head, in each piece."""
    for rank in six:
        for size in (2, 3):
            for case, pieces in (("plain", 1), ("accumulated by sockets", 3)):
                assert rank[f"{case}, rows of {size}"]["calls"]["backward"] == pieces * (2 * LAYERS + 1) + 1


def test_neighbours_share_a_model(six):
    """They are on one node, and tensor parallelism talks in every layer."""
    assert [rank[2][0] for rank in six] == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
    assert [rank[2][1] for rank in six] == [[0, 2, 4], [1, 3, 5]] * 3
    assert [rank[3][0] for rank in six] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3
    assert [rank[3][1] for rank in six] == [[0, 3], [1, 4], [2, 5]] * 2


def test_replicas_stay_equal_to_the_bit(two):
    assert two[0]["plain"]["replicas"]
    assert worst(two[1]["plain"]["replicas"], two[0]["plain"]["replicas"]) == 0


def test_smaller_buckets_are_more_and_sum_the_same(two):
    """After the first step, in which torch learns in which order gradients come."""
    assert two[0][0.5]["last calls"]["backward"] > two[0][25]["last calls"]["backward"] == 1
    assert worst(two[0][0.5]["parameters"], two[0][25]["parameters"]) < 1e-12


def test_accumulation_sends_no_more_than_one_backward(two):
    assert two[0]["accumulated"]["calls"]["backward"] == two[0]["plain"]["calls"]["backward"]


def test_gradients_travel_in_the_precision_that_was_chosen(two, whole):
    """bfloat16 has 8 bits of a number, float32 has 24."""
    if "rounded" not in two[0]:
        pytest.skip("this torch's gloo does not add bfloat16")
    for rank in two:
        assert 2**-12 < gradient_error(rank["rounded"], whole["plain"]) < 2**-7


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(two, whole, mistake):
    found = max(gradient_error(rank[mistake], whole["plain"]) for rank in two)
    assert found > 1e6 * TOLERANCE["float64"]["gradients"], f"{mistake} changes gradients by {found:.1e} only"
    apart = worst(two[1][mistake]["replicas"], two[0][mistake]["replicas"])
    assert (apart > 0) == (mistake == "unsynced"), "only without a sum do the replicas drift apart"
