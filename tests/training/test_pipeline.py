"""Pipeline parallelism against one process on the same batch; and that its schedule is the one it claims."""

import itertools
from unittest.mock import patch

import pytest
import torch

from agreement import TOLERANCE, assert_same_steps, gradient_error, worst
from gpt.model import build
from parallel import none, pp
from parallel.breaks import BREAKS
from processes import spawn
from steps import SYMBOLS, measure, small

# 3 blocks over 2 stages are unequal; 8 microbatches are more than the stages, 4 are as many.
CASES = {
    "plain": {"layers": 4, "batch_size": 8},
    "fast": {"layers": 4, "batch_size": 8, "recipe": "fast"},
    "accumulated": {"layers": 4, "batch_size": 12, "accumulate": 3},
    "uneven": {"layers": 3, "batch_size": 8, "microbatches": 8},
}
MISTAKES = [name for name, mistake in BREAKS.items() if "pp" in mistake.strategies]
MICROBATCHES = 8


def measure_pp(rank, world_size):
    cases = {name: case for name, case in CASES.items() if case["layers"] >= world_size}
    found = {name: measure(pp, "float64", **case) for name, case in cases.items()}
    found["schedule"] = one_batch()
    if world_size == 2:
        for name in MISTAKES:
            with patch.object(*BREAKS[name].target(), BREAKS[name].instead):
                found[name] = {**measure(pp, "float64", **CASES["plain"]), **one_batch()}
    return found


def one_batch():
    """Of a batch on this rank: when it computed what, most bytes kept for backward, and the loss of batches of other
    sizes, forward only."""
    config = small("float64", layers=4, batch_size=MICROBATCHES, microbatches=MICROBATCHES)
    model = pp.prepare(build(config, SYMBOLS), config)
    tokens, targets = torch.randint(SYMBOLS, (2, 8, 16), generator=torch.Generator().manual_seed(0))
    pp.backward(model, tokens, targets, targets.numel(), last=True)  # the first infers shapes
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, Kept.unpack):
        pp.backward(model, tokens, targets, targets.numel(), last=True)
    with torch.no_grad():
        losses = [pp.mean_loss(model, tokens[:rows, :T], targets[:rows, :T], rows * T) for rows, T in OTHER_SIZES]
    return {
        "spans": model.stage.spans,
        "kept": kept.most,
        "evaluated": [pp.whole_loss(model, loss) for loss in losses],
    }


OTHER_SIZES = ((7, 16), (3, 16), (1, 5))  # the validation text ends with a single row, a short one


class Kept:
    """Counts the tensors that autograd keeps for backward, by saved_tensors_hooks."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        self.now += 1
        self.most = max(self.most, self.now)
        return Held(self, tensor)

    @staticmethod
    def unpack(held):
        return held.tensor


class Held:
    def __init__(self, kept, tensor):
        self.kept, self.tensor = kept, tensor

    def __del__(self):
        self.kept.now -= 1


@pytest.fixture(scope="module")
def whole():
    return {name: measure(none, "float64", **case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return spawn(measure_pp, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return spawn(measure_pp, 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize(
    ("stages", "case"),
    [
        ("two", "plain"),
        ("two", "fast"),
        ("two", "accumulated"),
        ("two", "uneven"),
        ("four", "plain"),
        ("four", "accumulated"),
    ],
)
def test_equals_one_process_on_the_same_batch(stages, case, whole, request):
    for rank in request.getfixturevalue(stages):
        assert_same_steps(rank[case], whole[case], "float64")


def test_every_parameter_is_on_one_stage(two, whole):
    names = [name for rank in two for name in rank["uneven"]["replicas"]]
    assert sorted(names) == sorted(whole["uneven"]["parameters"])
    assert {name.split(".")[1] for name in two[0]["uneven"]["replicas"] if "blocks" in name} == {"0", "1"}


def test_a_batch_of_any_size_can_be_evaluated(two, four):
    config = small("float64", layers=4)
    model = build(config, SYMBOLS)
    tokens, targets = torch.randint(SYMBOLS, (2, 8, 16), generator=torch.Generator().manual_seed(0))
    for number, (rows, T) in enumerate(OTHER_SIZES):
        with torch.no_grad():
            expected = none.mean_loss(model, tokens[:rows, :T], targets[:rows, :T], rows * T)
        for rank in (*two, *four):
            torch.testing.assert_close(rank["schedule"]["evaluated"][number], expected, rtol=1e-13, atol=0)


def test_sends_and_receives(two, four):
    """Each microbatch crosses each border once forward and once backward; middle stages have two borders."""
    for ranks in (two, four):
        for number, rank in enumerate(ranks):
            borders = 1 if number in (0, len(ranks) - 1) else 2
            count = 4 * borders
            assert rank["plain"]["calls"] == {"forward": count, "backward": count, "gradient_norm": 1}


def in_flight(spans):
    """The most microbatches that a rank has sent forward and not yet backward."""
    now, most = 0, 0
    for kind, _ in spans:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most


def test_one_forward_one_backward(two, four):
    """The first of p stages begins p microbatches before one comes back: that is when the stages work at once."""
    for ranks in (two, four):
        for number, rank in enumerate(ranks):
            spans = rank["schedule"]["spans"]
            warm_up = len(ranks) - number
            order = [kind[0] for kind, _ in spans]
            assert order == ["f"] * warm_up + ["b", "f"] * (MICROBATCHES - warm_up) + ["b"] * warm_up
            for kind in ("forward", "backward"):
                assert [microbatch for each, microbatch in spans if each == kind] == list(range(MICROBATCHES))
            times = [time for span in spans.values() for time in span]
            assert times == sorted(times), "a rank does one thing at a time"


def test_a_microbatch_goes_from_stage_to_stage(two, four):
    for ranks in (two, four):
        for microbatch in range(MICROBATCHES):
            forward = [rank["schedule"]["spans"]["forward", microbatch] for rank in ranks]
            backward = [rank["schedule"]["spans"]["backward", microbatch] for rank in reversed(ranks)]
            for before, after in itertools.pairwise(forward + backward):
                assert before[1] <= after[0], "a stage began before the one before had ended"


def test_a_stage_keeps_the_activations_of_a_few_microbatches_only(two):
    """1F1B: the first of two stages keeps 2 microbatches; GPipe all 8."""
    one_by_one, all_first = two[0]["schedule"], two[0]["all-forward-first"]
    assert in_flight(one_by_one["spans"]) == 2
    assert in_flight(all_first["spans"]) == MICROBATCHES
    assert all_first["kept"] == pytest.approx(one_by_one["kept"] * MICROBATCHES / 2, rel=0.05)


# Mistake -> the checks that must find it; all others must not. Clipping hides a gradient that is M times too large.
CAUGHT_BY = {
    "unscaled-microbatches": {"loss", "gradients"},
    "stage-clip": {"parameters"},
    "all-forward-first": {"in flight"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake, two, whole):
    expected, tolerance = whole["plain"], TOLERANCE["float64"]
    found = [rank[mistake] for rank in two]
    caught = {
        "loss": abs(found[0]["loss"] / expected["loss"] - 1) > 1e3 * tolerance["loss"],
        "gradients": gradient_error(found[0], expected) > 1e3 * tolerance["gradients"],
        "parameters": worst(found[0]["parameters"], expected["parameters"]) > 1e3 * tolerance["parameters"],
        "in flight": in_flight(found[0]["spans"]) > 2,
    }
    assert {check for check, finds in caught.items() if finds} == CAUGHT_BY[mistake]


def test_unscaled_gradients_are_as_often_too_large_as_there_are_microbatches(two, whole):
    assert two[0]["unscaled-microbatches"]["norm"] == pytest.approx(4 * whole["plain"]["norm"])
