"""Pipeline parallelism: every rank has some of the layers, and passes on what they make of each microbatch.

    2 stages, 4 microbatches       stage 0   F0 F1 .. B0 F2 B1 F3 B2 .. B3        F forward, B backward, .. idle
                                   stage 1   .. F0 B0 F1 B1 F2 B2 F3 B3 ..

One forward, one backward (1F1B): a stage begins to go backward as soon as it can, so that the first holds the
activations of 2 microbatches, not of all. Source: Narayanan et al. 2019, PipeDream, https://arxiv.org/abs/1806.03377;
in the form that keeps the batch's gradient exact: Narayanan et al. 2021, https://arxiv.org/abs/2104.04473.

The functions of none.py, in its order. Legend: B batch, T time, C channels, V symbols, M microbatches.
"""

import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B
from torch.nn import functional as F

from parallel.pp_stage import Stage
from ranks import sharding
from ranks.communication import all_reduce, own_device, receive

# Newer torch divides the gradient by M unless told not to; 2.6 cannot be told, and does not.
UNSCALED = {"scale_grads": False} if "scale_grads" in inspect.signature(Schedule1F1B).parameters else {}


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    if config.layers < world_size:
        raise ValueError(f"--layers {config.layers} cannot be divided over {world_size} stages: start fewer ranks")
    if config.microbatches < world_size:
        raise ValueError(
            f"--microbatches {config.microbatches} cannot keep {world_size} stages busy: give {world_size} or more"
        )
    count = config.accumulate * config.microbatches
    if config.batch_size % count:
        raise ValueError(
            f"--batch-size {config.batch_size} cannot be divided into {count} equal microbatches, "
            f"--accumulate {config.accumulate} x --microbatches {config.microbatches}: give a multiple of {count}"
        )


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    mine = blocks(config.layers, rank, world_size)
    shown = f"block {mine[0]}" if len(mine) == 1 else f"blocks {mine[0]}-{mine[-1]}"
    first, last = "embedding, " * (rank == 0), ", norm, head" * (rank == world_size - 1)
    return f"{first}{shown} of {config.layers}{last}"


def prepare(model, config):
    """The model as this rank trains it: an nn.Identity stands for each layer that another stage holds.

    So the stage's forward is the model's own, tokens or activations in, activations or logits out, and its parameters
    keep their names.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device, mine = own_device(), blocks(config.layers, rank, world_size)
    if rank > 0:
        model.embedding = nn.Identity()
    for number in set(range(config.layers)) - set(mine):
        model.blocks[number] = nn.Identity()
    if rank < world_size - 1:
        model.norm, model.head = nn.Identity(), nn.Identity()
    sharding.fill(model, shards)
    # [0, 0, C]: nothing but the width, type and device of what a stage receives.
    model.activations = torch.empty(0, 0, config.channels, dtype=getattr(torch, config.dtype), device=device)
    model.stage = Stage(model, rank, world_size, device)
    model.schedule = Schedule1F1B(model.stage, config.microbatches, model.stage.loss, **UNSCALED)
    return model


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: all of it. The first stage takes the tokens, the last the targets."""
    return tokens, targets


def mean_loss(model, tokens, targets, count):
    """This rank's part of the cross-entropy, a scalar, averaged over the `count` tokens of the whole batch: all of it
    on the last stage, 0 on the others.

    Forward only, for a batch [B, T] of any size: activations [B, T, C] come from the stage before, or go to the next.
    """
    stage, x, rank = model.stage, tokens, dist.get_rank()
    if not stage.is_first:
        x = receive(model.activations.new_empty(*tokens.shape, model.activations.shape[-1]), rank - 1, "forward")
    x = model(x)  # [B, T, C], or [B, T, V] from the last
    if stage.is_last:
        return F.cross_entropy(x.flatten(0, 1), targets.flatten(), reduction="sum") / count
    stage.sends.start(x, rank + 1, "forward")
    stage.sends.finish()
    return x.new_zeros(())


def backward(model, tokens, targets, count, last):
    """Add to the gradients, M microbatches [B/M, T] in turn. Returns this rank's part of the loss."""
    stage, losses = model.stage, []
    stage.count = count
    stage.spans.clear()
    inputs = (tokens,) if stage.is_first else ()
    model.schedule.step(*inputs, **({"target": targets, "losses": losses} if stage.is_last else {}))
    stage.sends.finish()
    stage.over()
    return torch.stack(losses).sum().detach() if stage.is_last else model.activations.new_zeros(())


def whole_loss(model, loss):
    """The loss of the whole batch, a scalar, equal on every rank. One all-reduce of it: the last stage alone has it."""
    return all_reduce(loss, "loss")


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar, equal on every rank. One all-reduce of a scalar.

    Each parameter is on one stage only: the squares of the stages add up.
    """
    return all_reduce(sum(p.grad.square().sum() for p in model.parameters()), "gradient_norm").sqrt()


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return sharding.whole(model)


def blocks(layers, rank, world_size):
    """The numbers of the blocks of a stage: as even as they go, earlier stages get one more."""
    return torch.arange(layers).tensor_split(world_size)[rank].tolist()
