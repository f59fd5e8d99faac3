"""Tensor parallelism against the whole model: four checks, and five defects that they must find."""

from unittest.mock import patch

import pytest
import torch

import none
import tp
from agreement import TOLERANCE, gradient_error, worst
from breaks import BREAKS
from measure import CLIP, DTYPES, LAYERS, measure
from processes import spawn

# Defect -> the checks that must find it, and those that must not: what they say tells one defect from another.
CAUGHT_BY = {
    "missing-f": ({"gradients", "parameters", "replicas"}, {"loss"}),
    "double-g": ({"gradients", "parameters"}, {"loss", "replicas"}),
    "early-bias": ({"loss", "gradients", "parameters"}, {"replicas"}),
    "local-clip": ({"replicas"}, {"loss", "gradients"}),
    "unmasked-padding": ({"loss", "gradients", "parameters"}, {"replicas"}),
}


def measure_tp(rank, world_size):
    """By (defect, dtype), on one rank: without a defect, and with each."""
    found = {}
    for dtype in DTYPES:
        found[None, dtype] = measure(tp, dtype)
        for name, mistake in BREAKS.items():
            if "tp" in mistake.strategies:
                with patch.object(*mistake.target(), mistake.instead):
                    found[name, dtype] = measure(tp, dtype)
    return found


@pytest.fixture(scope="module")
def whole():
    return {dtype: measure(none, dtype) for dtype in DTYPES}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def ranks(request, tmp_path_factory):
    """What each rank measured, by (defect, dtype)."""
    return spawn(measure_tp, request.param, tmp_path_factory.mktemp("ranks"))


def errors(ranks, whole, defect, dtype):
    """Check -> error, the worst of all ranks. Replicas: the largest difference to rank 0."""
    expected = whole[dtype]
    found = [rank[defect, dtype] for rank in ranks]
    assert expected["norm"] > CLIP, "the gradient is not clipped, so this tests no clipping"
    assert found[0]["replicas"]
    return {
        "loss": max(abs(rank["loss"] / expected["loss"] - 1).item() for rank in found),
        "gradients": max(gradient_error(rank, expected) for rank in found),
        "parameters": max(worst(rank["parameters"], expected["parameters"]) for rank in found),
        "replicas": max(worst(rank["replicas"], found[0]["replicas"]) for rank in found),
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_checks(ranks, whole, dtype):
    found = errors(ranks, whole, None, dtype)
    for check, tolerance in TOLERANCE[dtype].items():
        assert found[check] <= tolerance, f"{check} differ by {found[check]:.1e}, allowed {tolerance:.0e}"
    assert found["replicas"] == 0, "replicated parameters must be equal to the bit"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_norm_is_that_of_the_whole_model(ranks, whole, dtype):
    for rank in ranks:
        torch.testing.assert_close(rank[None, dtype]["norm"], whole[dtype]["norm"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("defect", CAUGHT_BY)
def test_a_defect_is_caught(ranks, whole, defect, dtype):
    found = errors(ranks, whole, defect, dtype)
    finds, does_not = CAUGHT_BY[defect]
    for check in finds:
        assert found[check] > 10 * TOLERANCE[dtype].get(check, 0), f"{check} did not find it: {found}"
    for check in does_not:
        assert found[check] <= TOLERANCE[dtype].get(check, 0), f"{check} should be unharmed: {found}"


def test_collectives(ranks):
    for rank in ranks:
        calls = rank[None, "float32"]["calls"]
        assert calls == {"forward": LAYERS + 4, "backward": LAYERS + 1, "gradient_norm": 1}
