"""One process beside what this project did not write: torch's modules, its optimizer, formulas, sums by hand.

The strategies' tests compare with one process, so what is proved here holds for them.
"""

import math

import pytest
import torch

import reference
from agreement import worst
from gpt.config import Config
from gpt.model import GPT, build, generate
from gpt.muon import orthogonalise
from parallel import none
from steps import STEPS, SYMBOLS, Losses, disturb, reads_the_future, small, start
from train import schedule

# The angles of rotary positions are made in float32, so fast.py differs from the formula by their rounding.
MODELS = {"plain": (reference.plain, 1e-12), "fast": (reference.fast, 1e-6)}
HALF = math.sqrt(1 / 2)  # cos(45 degrees)
# Flags -> the share of the highest rate in each step. The step after the last would be at `final_lr`.
SHARES = {
    ("linear", 2, 0.0, 6): [1 / 2, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5],
    ("linear", 0, 0.5, 3): [7 / 8, 6 / 8, 5 / 8],
    ("cosine", 1, 0.0, 4): [1, (1 + HALF) / 2, 1 / 2, (1 - HALF) / 2],
    ("cosine", 0, 0.1, 1): [0.1 + 0.9 / 2],
    ("linear", 4, 0.0, 3): [1 / 4, 2 / 4, 3 / 4],
}
WARM_UP_2_OF_5 = [1 / 2, 1, 3 / 4, 2 / 4, 1 / 4]


@pytest.mark.parametrize("recipe", MODELS)
def test_logits_loss_and_gradients(recipe):
    forward, tolerance = MODELS[recipe]
    model = build(small("float64", recipe=recipe), SYMBOLS)
    disturb(model)
    tokens, targets = torch.randint(SYMBOLS, (2, 3, 11), generator=torch.Generator().manual_seed(0))
    loss = none.mean_loss(model, tokens, targets, targets.numel())
    loss.backward()
    weights = {each: p.detach().clone().requires_grad_() for each, p in model.named_parameters()}
    logits = forward(weights, tokens, heads=4)
    expected = torch.nn.CrossEntropyLoss()(logits.flatten(0, 1), targets.flatten())
    expected.backward()
    torch.testing.assert_close(model(tokens), logits, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    greatest = max(weight.grad.abs().max() for weight in weights.values())
    found = {each: p.grad for each, p in model.named_parameters()}
    assert worst(found, {each: weight.grad for each, weight in weights.items()}, greatest) < tolerance


@pytest.mark.parametrize("recipe", MODELS)
def test_no_logit_depends_on_a_later_character(recipe):
    earlier, later = reads_the_future(start(none, "float64", recipe=recipe))
    assert earlier < 1e-13 < later


def test_initial_weights_are_torchs_own():
    """Of a model that is made at once."""
    config = small("float32", seed=7)
    torch.manual_seed(7)
    expected = dict(GPT(config, SYMBOLS).named_parameters())
    found = dict(build(config, SYMBOLS).named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_initial_weights_of_the_fast_model_keep_the_size_of_activations():
    """Numbers of size 1 become numbers of size 1; what adds up over 4 layers is of size 1/2, and so 1 in all."""
    config = Config(recipe="fast", layers=4)
    block = build(config, SYMBOLS).blocks[0]
    generator = torch.Generator().manual_seed(0)
    for layer, size in ((block.inward, 1), (block.outward, 1 / 2)):
        x = torch.randn(200, layer.in_features, generator=generator)
        assert layer(x).std().item() == pytest.approx(size, rel=0.05)


def test_a_sample_follows_the_models_distribution():
    """Of a model that is certain: each symbol is followed by the next one."""

    def certain(tokens):
        assert tokens.shape[1] <= certain.block_size
        return 1e4 * torch.nn.functional.one_hot((tokens + 1) % 9, 9).float()  # [1, T, V]

    certain.block_size = 4
    assert generate(certain, [5], length=8, seed=0) == [5, 6, 7, 8, 0, 1, 2, 3, 4]


def test_a_gradient_that_is_no_number_ends_the_run():
    trainer = start(none, "float32")
    next(trainer.model.parameters()).data.fill_(math.nan)
    with pytest.raises(RuntimeError, match=r"norm is nan at step 1: try a lower --lr than 0\.001"):
        trainer.step(1, Losses())


@pytest.mark.parametrize(("flags", "shares"), SHARES.items(), ids=str)
def test_the_share_of_each_step(flags, shares):
    decay, warmup, final_lr, steps = flags
    config = Config(decay=decay, warmup=warmup, final_lr=final_lr, steps=steps)
    assert [schedule(step, config) for step in range(1, steps + 1)] == pytest.approx(shares)


@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.05), (3, 0.05), (1, 1000)])
@pytest.mark.parametrize("recipe", MODELS)
def test_steps_are_those_of_torch(recipe, accumulate, clip):
    """Five of train.py's, on a whole batch or in pieces; the matrices of the blocks by Muon, or all by AdamW."""
    changed = {"clip": clip, "recipe": recipe, "steps": STEPS, "lr": 0.01, "muon_lr": 0.02, "weight_decay": 0.5}
    trainer = start(none, "float64", accumulate=accumulate, **changed)
    losses = Losses()
    model = start(none, "float64", recipe=recipe).model
    optimizer = reference.Optimizer(model, trainer.config)
    for step, share in enumerate(WARM_UP_2_OF_5, start=1):
        trainer.step(step, losses)
        tokens, targets = trainer.batches.batch(step)
        loss = torch.nn.CrossEntropyLoss()(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert (norm > clip) == (clip < 1), "a gradient that is clipped, or one that is far from it"
        optimizer.step(share)
        assert losses[-1] == pytest.approx(loss.item(), rel=1e-9)
    assert worst(dict(trainer.model.named_parameters()), dict(model.named_parameters())) < 1e-8


def test_muon_makes_singular_values_about_1():
    pieces = torch.randn(6, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(pieces)
    torch.testing.assert_close(found, torch.stack([reference.by_singular_values(piece) for piece in pieces]))
    values = torch.linalg.svdvals(found)
    assert 0.65 < values.min() < values.max() < 1.25


def test_the_validation_loss_is_a_sum_over_characters():
    """Each but the first is a target once, and counts the same, whatever batch it is in."""
    trainer = start(none, "float64")
    text, block, losses = trainer.batches.validation, trainer.config.block_size, []
    with torch.no_grad():
        for begin in range(0, len(text) - 1, block):
            piece = text[begin : begin + block + 1]
            log = trainer.model(piece[None, :-1])[0].log_softmax(-1)  # [T, V]
            losses += [-log[place, target].item() for place, target in enumerate(piece[1:])]
    assert len(losses) == len(text) - 1
    assert trainer.evaluate() == pytest.approx(sum(losses) / len(losses), rel=1e-12)
