"""Tensor parallelism by torch.distributed.tensor: against the whole model, and the traps of torch 2.6."""

from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, placement_types
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grad_norm_

from agreement import TOLERANCE, assert_same_steps, gradient_error, worst
from gpt.model import build
from parallel import none, tp_dtensor
from parallel.breaks import BREAKS, Break
from processes import spawn
from steps import LAYERS, SYMBOLS, measure, of_torch_2_6, small

CASES = {
    ("plain", "float64"): {"batch_size": 5},
    ("plain", "float32"): {"batch_size": 6},
    ("sequence", "float64"): {"batch_size": 7, "sequence_parallel": "on"},
    ("fast", "float64"): {"recipe": "fast"},
    ("fast, sequence", "float64"): {"recipe": "fast", "sequence_parallel": "on"},
    ("sequence, accumulated", "float64"): {"batch_size": 16, "accumulate": 3, "sequence_parallel": "on"},
}
# Not a switch of train.py: it shows under a cut sequence only.
UNSUMMED = Break(
    "norms' gradients, each of a rank's part of the sequence, are not summed",
    ("tp-dtensor",),
    "dtensors",
    "all_reduce",
    lambda tensor, kind, group: tensor,
)
MISTAKES = {name: mistake for name, mistake in BREAKS.items() if "tp-dtensor" in mistake.strategies}
MISTAKES["unsummed-norms"] = UNSUMMED
SEQUENCE = CASES["sequence", "float64"]


def measure_tp_dtensor(rank, world_size):
    found = {case: measure(tp_dtensor, case[1], **changed) for case, changed in CASES.items()}
    for name, mistake in MISTAKES.items():
        with patch.object(*mistake.target(), mistake.instead):
            found[name] = measure(tp_dtensor, "float64", **SEQUENCE)
    with patch.object(tp_dtensor, "gradient_norm", torch_norm), patch.object(tp_dtensor, "lay_out_gradients", id):
        found["torch's norm"] = first_norm(tp_dtensor)
    found["losses"] = losses(tp_dtensor)
    found["tied"], found["untied"] = (is_tied(retied) for retied in (True, False))
    found["mean"] = mean_of_a_cut_tensor()
    return found


def torch_norm(model):
    return clip_grad_norm_(model.parameters(), float("inf")).full_tensor()


def first_norm(strategy):
    """Of the gradient of a batch, under a cut sequence."""
    config = small("float64", **SEQUENCE)
    model = strategy.prepare(build(config, SYMBOLS), config)
    tokens, targets = torch.randint(SYMBOLS, (2, 7, 16), generator=torch.Generator().manual_seed(0))
    strategy.backward(model, tokens, targets, targets.numel(), last=True)
    return strategy.gradient_norm(model).detach().clone()


def losses(strategy):
    """Of sequences and vocabularies that ranks do not divide: 5 symbols on 4 ranks leave one without any."""
    found = []
    for symbols in (65, 5):
        for sequence_parallel in ("off", "on"):
            config = small("float64", sequence_parallel=sequence_parallel, channels=40)
            model = strategy.prepare(build(config, symbols), config)
            for length in (1, 13):
                tokens, targets = (torch.arange(2 * length) % symbols).view(2, 1, length)
                with torch.no_grad():
                    found.append(strategy.mean_loss(model, tokens, targets, length))
    return torch.stack(found)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight


def is_tied(retied):
    model = Tied()
    ties = tp_dtensor.tied(model)
    plan = {"embedding": RowwiseParallel(), "head": ColwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (torch.distributed.get_world_size(),)), plan)
    if retied:
        tp_dtensor.retie(model, ties)
    return model.head.weight is model.embedding.weight


def mean_of_a_cut_tensor():
    """By torch, or what it says; and as a sum that is divided, as in tp_dtensor.mean_loss."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    cut = distribute_tensor(torch.arange(8.0), mesh, [placement_types.Shard(0)])
    try:
        by_torch = cut.mean().full_tensor().item()
    except RuntimeError as error:
        by_torch = str(error)
    return by_torch, (cut.sum().full_tensor() / 8).item()


@pytest.fixture(scope="module")
def whole():
    return {case: measure(none, case[1], **changed) for case, changed in CASES.items()}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def ranks(request, tmp_path_factory):
    return spawn(measure_tp_dtensor, request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_equals_the_whole_model(ranks, whole, case):
    for rank in ranks:
        assert_same_steps(rank[case], whole[case], case[1])
        assert worst(rank[case]["replicas"], ranks[0][case]["replicas"]) == 0


@pytest.mark.parametrize(("recipe", "pairs"), [("plain", 2), ("fast", 1)])
def test_collectives_are_those_of_tp(ranks, recipe, pairs):
    """Under a cut sequence an all-reduce becomes an all-gather and a reduce-scatter, but for the three of the loss.

    Then the plain model needs two more backward: parts of the gradients of the norms, and those of the positions.
    """
    whole, cut = (recipe, "float64"), ("sequence" if recipe == "plain" else "fast, sequence", "float64")
    for rank in ranks:
        calls = {"forward": pairs * LAYERS + 4, "backward": pairs * LAYERS + 1, "gradient_norm": 1}
        assert rank[whole]["calls"] == calls
        kinds = {f"{phase} {name}" for phase in ("forward", "backward") for name in ("all_gather", "reduce_scatter")}
        calls = {**dict.fromkeys(kinds, pairs * LAYERS + 1), "forward": 3, "gradient_norm": 1}
        if recipe == "plain":
            calls |= {"backward": 1, "backward all_gather": pairs * LAYERS + 2}
        assert rank[cut]["calls"] == calls


def test_vocabularies_and_sequences_that_ranks_do_not_divide(ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["losses"], losses(none), rtol=1e-13, atol=0)


def test_tied_weights_stay_tied(ranks):
    for rank in ranks:
        assert rank["tied"]
        assert not rank["untied"], "parallelize_module keeps them tied now: retie is not needed"


@of_torch_2_6
def test_the_norm_of_torch_is_wrong_under_a_cut_sequence(ranks):
    """So the gradients of the norms are summed first, and the norm is our own."""
    expected = first_norm(none).item()
    for rank in ranks:
        assert rank["torch's norm"].item() != pytest.approx(expected, rel=1e-5)


def test_a_mean_is_a_sum_divided(ranks):
    for rank in ranks:
        by_torch, ours = rank["mean"]
        assert by_torch in ("Cannot use ReduceOp.AVG with Gloo", 3.5)  # torch 2.14 can
        assert ours == 3.5


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(ranks, whole, mistake):
    """The wrong norm clips ranks differently; gradients that are not summed are wrong themselves."""
    wrong = max(gradient_error(rank[mistake], whole["sequence", "float64"]) for rank in ranks)
    assert (wrong > 1e6 * TOLERANCE["float64"]["gradients"]) == (mistake == "unsummed-norms")
    assert max(worst(rank[mistake]["replicas"], ranks[0][mistake]["replicas"]) for rank in ranks) > 1e-9
