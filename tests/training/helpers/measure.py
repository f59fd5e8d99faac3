"""Five steps of a small model by a strategy: everything that the four checks compare."""

import torch
import torch.distributed as dist

import communication
import sharding
from config import Config
from model import build
from rendezvous import gather
from sharding import local
from train import clip, make_optimizer

LAYERS, SYMBOLS, STEPS, CLIP = 2, 27, 5, 0.05
DTYPES = ("float64", "float32")


def small(dtype, **changed):
    sizes = {"layers": LAYERS, "heads": 4, "channels": 32, "block_size": 16, "batch_size": 5, "lr": 1e-3}
    return Config(**{**sizes, "dtype": dtype, **changed})


def measure(strategy, dtype, **changed):
    """Of the first step: loss, gradient norm, gradients, number of collectives by kind. Of the last: the number of
    collectives, all parameters, and the replicated ones.
    """
    config = small(dtype, **changed)
    model = build(config, SYMBOLS)
    disturb(model)
    model = strategy.prepare(model, config)
    shards = strategy.shards(model)
    optimizer = make_optimizer(shards, config)
    found = {}
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        tokens, targets = torch.randint(SYMBOLS, (2, config.batch_size, config.block_size), generator=generator)
        communication.calls.clear()
        shares = [each.tensor_split(config.accumulate) for each in strategy.local_batch(model, tokens, targets)]
        loss = 0.0
        for number, (inputs, labels) in enumerate(zip(*shares, strict=True), start=1):
            loss += strategy.backward(model, inputs, labels, targets.numel(), number == config.accumulate)
        norm = strategy.gradient_norm(model)
        if step == 0:
            found.update(norm=norm, calls=dict(communication.calls), loss=strategy.whole_loss(model, loss))
            found["gradients"] = whole({name: (shard, shard.parameter.grad) for name, shard in shards.items()})
        clip(shards, norm, CLIP)
        optimizer.step()
        optimizer.zero_grad()
    found["last calls"] = dict(communication.calls)
    found["parameters"] = whole({name: (shard, shard.parameter) for name, shard in shards.items()})
    found["replicas"] = {
        name: local(shard.parameter).detach().clone() for name, shard in shards.items() if shard.dimension is None
    }
    return found


def whole(tensors):
    """Whole tensors by name, on every rank, from (Shard, tensor) by name of each."""
    parts = {name: (shard.place(), shard.part(tensor).clone()) for name, (shard, tensor) in tensors.items()}
    return sharding.join(gather(parts) if dist.is_initialized() else [parts])


def disturb(model):
    """Fresh biases are 0 and norms 1, at which some defects do not show."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
