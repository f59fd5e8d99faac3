"""FSDP against one process on the same batch, and what torch 2.6 needs for it on a CPU."""

from unittest.mock import patch

import pytest
import torch

from agreement import TOLERANCE, assert_same_steps, gradient_error
from gpt.model import build
from parallel import fsdp, none
from parallel.breaks import BREAKS
from processes import spawn
from steps import LAYERS, SYMBOLS, measure, of_torch_2_6, small

# 5 sequences, 27 symbols: ranks do not divide them. And 10 sequences, accumulated in three steps.
CASES = {
    ("plain", "float64"): {},
    ("plain", "float32"): {},
    ("fast", "float64"): {"recipe": "fast"},
    ("accumulated", "float64"): {"batch_size": 10, "accumulate": 3},
    ("uneven", "float64"): {"channels": 36, "heads": 2},
}
MISTAKES = [name for name, mistake in BREAKS.items() if "fsdp" in mistake.strategies]


def measure_fsdp(rank, world_size):
    found = {case: measure(fsdp, case[1], **changed) for case, changed in CASES.items()}
    for name in MISTAKES:
        with patch.object(*BREAKS[name].target(), BREAKS[name].instead):
            found[name] = measure(fsdp, "float64")
    with patch.object(fsdp, "reduce_scatter", fsdp.reduce_scatter_tensor):
        found["AVG as it is"] = measure(fsdp, "float32")
    found["one sequence"] = validation_loss(fsdp)
    return found


def validation_loss(strategy):
    """Of one sequence: most ranks have none."""
    config = small("float64")
    model = strategy.prepare(build(config, SYMBOLS), config)
    tokens, targets = torch.arange(14).view(2, 1, 7)
    with torch.no_grad():
        loss = strategy.mean_loss(model, *strategy.local_batch(model, tokens, targets), targets.numel())
    return strategy.whole_loss(model, loss)


@pytest.fixture(scope="module")
def whole():
    return {case: measure(none, case[1], **changed) for case, changed in CASES.items()}


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request, tmp_path_factory):
    return spawn(measure_fsdp, request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_equals_one_process_on_the_same_batch(ranks, whole, case):
    for rank in ranks:
        assert_same_steps(rank[case], whole[case], case[1])


def test_a_rank_without_a_sequence_takes_part(ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["one sequence"], validation_loss(none), rtol=1e-13, atol=0)


def test_collectives(ranks):
    """A block is gathered for forward and again for backward; gradients travel with the last accumulation step only."""
    for rank in ranks:
        calls = {
            "forward all_gather": LAYERS + 1,
            "backward all_gather": LAYERS,
            "backward reduce_scatter": LAYERS + 1,
            "gradient_norm": 1,
        }
        assert rank["plain", "float64"]["calls"] == calls
        calls |= {"forward all_gather": 3 * LAYERS + 3, "backward all_gather": 3 * LAYERS}
        assert rank["accumulated", "float64"]["calls"] == calls


@of_torch_2_6
def test_gloo_takes_an_average_for_a_sum(ranks, whole):
    """Without `reduce_scatter` of fsdp.py float32 gradients, which FSDP averages by ReduceOp.AVG, would be R times too
    large: this version's gloo has no such operation, and does not say so."""
    for rank in ranks:
        ratio = rank["AVG as it is"]["norm"] / whole["plain", "float32"]["norm"]
        torch.testing.assert_close(ratio.item(), float(len(ranks)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(ranks, whole, mistake):
    expected = whole["plain", "float64"]
    for rank in ranks:
        error = gradient_error(rank[mistake], expected)
        assert error > 1e6 * TOLERANCE["float64"]["gradients"], f"{mistake} changes gradients by {error:.1e} only"
