"""Five steps of a small model by a strategy: everything that the four checks compare."""

from unittest.mock import patch

import torch

import communication
import tp
from config import Config
from defects import DEFECTS
from model import build
from train import clip, make_optimizer

LAYERS, SYMBOLS, STEPS, CLIP = 2, 27, 5, 0.05
DTYPES = ("float64", "float32")


def small(dtype):
    return Config(layers=LAYERS, heads=4, channels=32, block_size=16, batch_size=4, lr=1e-3, dtype=dtype)


def measure(strategy, dtype, rank=0, world_size=1):
    """First step: loss, norm, gradients, collectives by kind. Last: parameters, and the replicated ones."""
    config = small(dtype)
    model = build(config, SYMBOLS)
    disturb(model)
    model = strategy.prepare(model, rank, world_size)
    optimizer = make_optimizer(model, config)
    found = {}
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        tokens, targets = torch.randint(SYMBOLS, (2, config.batch_size, config.block_size), generator=generator)
        communication.calls.clear()
        loss = strategy.mean_loss(model, tokens, targets)
        loss.backward()
        norm = strategy.gradient_norm(model)
        if step == 0:
            found.update(loss=loss.detach(), norm=norm, calls=dict(communication.calls))
            found["gradients"] = strategy.full_state(model, {n: p.grad for n, p in model.named_parameters()})
        clip(model, norm, CLIP)
        optimizer.step()
        optimizer.zero_grad()
    found["parameters"] = strategy.full_state(model, dict(model.named_parameters()))
    found["replicas"] = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if strategy is tp and tp.cut_dimension(model, name) is None
    }
    return found


def disturb(model):
    """Fresh biases are 0 and norms 1, at which some defects do not show."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def measure_all(rank, world_size):
    """By (defect, dtype), on one rank: without a defect, and with each."""
    found = {}
    for dtype in DTYPES:
        found[None, dtype] = measure(tp, dtype, rank, world_size)
        for name, defect in DEFECTS.items():
            with patch.object(*defect):
                found[name, dtype] = measure(tp, dtype, rank, world_size)
    return found
