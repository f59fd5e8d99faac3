"""Tensor parallelism against the whole model: four checks, and five defects that they must find."""

from unittest.mock import patch

import pytest
import torch

from agreement import TOLERANCE, assert_same_evaluation, assert_same_steps, gradient_error, worst
from gpt.config import Config
from parallel import none, tp
from parallel.breaks import BREAKS
from parallel.tp_layers import CopyToRanks, ReduceFromRanks, VocabParallelCrossEntropy
from processes import spawn
from ranks import communication
from steps import CLIP, DTYPES, LAYERS, SYMBOLS, measure

# Defect -> the checks that must find it, and those that must not: what they say tells one defect from another.
CAUGHT_BY = {
    "missing-f": ({"gradients", "parameters", "replicas"}, {"loss"}),
    "double-g": ({"gradients", "parameters"}, {"loss", "replicas"}),
    "early-bias": ({"loss", "gradients", "parameters"}, {"replicas"}),
    "local-clip": ({"replicas"}, {"loss", "gradients"}),
    "unmasked-padding": ({"loss", "gradients", "parameters"}, {"replicas"}),
}


# Without a defect, in float64.
CASES = {
    "fast": {"recipe": "fast"},
    "accumulated": {"accumulate": 3},
    "by sockets": {"all_reduce": "socket"},
    "accumulated by sockets": {"accumulate": 3, "all_reduce": "socket"},
    "fast, accumulated by sockets": {"recipe": "fast", "accumulate": 3, "all_reduce": "socket"},
}
HUGE = 1e4  # logits, whose exp is infinite


def measure_tp(rank, world_size):
    """By (defect, dtype), on one rank: without a defect, and with each. And by case."""
    found = {case: measure(tp, "float64", **changed) for case, changed in CASES.items()}
    found["huge"] = loss_of_a_slice(rank, world_size, torch.float32)
    found["huge, bf16"] = loss_of_a_slice(rank, world_size, torch.bfloat16)
    found["rounded"] = rounded(rank) if communication.sums(torch.bfloat16, "cpu") else None
    for dtype in DTYPES:
        found[None, dtype] = measure(tp, dtype)
        for name, mistake in BREAKS.items():
            if "tp" in mistake.strategies:
                with patch.object(*mistake.target(), mistake.instead):
                    found[name, dtype] = measure(tp, dtype)
    return found


def rounded(rank):
    """The sums of g forward and f backward, of 256 and 1."""
    communication.configure(Config(wire="bfloat16"))
    some = torch.tensor([256.0, 1.0, 0.0, 0.0][rank])
    x = torch.zeros((), requires_grad=True)
    CopyToRanks.apply(x, None).backward(some)
    found = ReduceFromRanks.apply(some, None).item(), x.grad.item()
    communication.configure(Config())
    return found


def huge_logits():
    """Logits [7, V] and targets [7]."""
    generator = torch.Generator().manual_seed(5)
    return HUGE * torch.randn(7, SYMBOLS, generator=generator), torch.randint(SYMBOLS, (7,), generator=generator)


def loss_of_a_slice(rank, world_size, dtype):
    """Loss of each token, [7], and the gradient of this rank's slice of the logits, [7, ceil(V/R)]."""
    logits, targets = huge_logits()
    length = -(-SYMBOLS // world_size)
    filled = torch.nn.functional.pad(logits, (0, world_size * length - SYMBOLS), value=float("-inf"))
    mine = filled.split(length, dim=1)[rank].to(dtype, copy=True).requires_grad_()
    losses = VocabParallelCrossEntropy.apply(mine, targets, rank * length, None)
    losses.sum().backward()
    return losses.detach(), mine.grad


@pytest.fixture(scope="module")
def whole():
    of_cases = {case: measure(none, "float64", **changed) for case, changed in CASES.items()}
    return of_cases | {dtype: measure(none, dtype) for dtype in DTYPES}


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
    for rank in ranks:
        assert_same_evaluation(rank[None, dtype], whole[dtype], dtype)


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process_on_the_same_batch(ranks, whole, case):
    for rank in ranks:
        assert_same_steps(rank[case], whole[case], "float64")


def test_the_sharded_loss_is_that_of_torch(ranks):
    """Of logits so large that exp of them is infinite."""
    logits, targets = huge_logits()
    logits.requires_grad_()
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    expected.sum().backward()
    for rank in ranks:
        torch.testing.assert_close(rank["huge"][0], expected.detach())
    gradient = torch.cat([rank["huge"][1] for rank in ranks], dim=1)[:, :SYMBOLS]
    torch.testing.assert_close(gradient, logits.grad)


def test_the_sharded_loss_of_bf16_logits_is_made_in_float32(ranks):
    logits, targets = huge_logits()
    expected = torch.nn.functional.cross_entropy(logits.bfloat16().float(), targets, reduction="none")
    for rank in ranks:
        torch.testing.assert_close(rank["huge, bf16"][0], expected)


def test_activations_travel_in_the_precision_that_was_chosen(ranks):
    """bfloat16 has no 257."""
    if ranks[0]["rounded"] is None:
        pytest.skip("this torch's gloo does not add bfloat16")
    for rank in ranks:
        assert rank["rounded"] == (256, 256)


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
        calls = {"forward": 2 * LAYERS + 4, "backward": 2 * LAYERS + 1, "gradient_norm": 1}
        assert rank[None, "float32"]["calls"] == calls
        calls = {"forward": LAYERS + 4, "backward": LAYERS + 1, "gradient_norm": 1}
        assert rank["fast"]["calls"] == calls, "a block of the fast model is one pair, not two"
