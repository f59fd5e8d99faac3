"""Tensor parallelism by torch: the cuts of tp.py as a plan for `parallelize_module`, which makes every parameter a
DTensor, a tensor that knows how it lies over the ranks, and sends what an operation needs.

The functions of none.py, in its order. Legend: B batch, T time, V symbols, R ranks.
"""

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

from gpt.fast import SumEmbedding
from parallel import tp
from parallel.dtensors import fill_up, lay_out_gradients, retie, shard_of, tied, watch
from parallel.tp_layers import look_up, mask_padding
from ranks import sharding
from ranks.communication import own_device


def plan(recipe, sequence_parallel):
    """Which layer is cut how. Between them x [B, T, C] is whole on every rank or, sequence-parallel, cut along T.

    A DTensor and a plain tensor do not mix in an operation, so positions and norms are in the plan too.
    Source of the sequence's cut: Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198.
    """
    x = Shard(1) if sequence_parallel else Replicate()
    column = ColwiseParallel(input_layouts=x)
    row = RowwiseParallel(output_layouts=x, use_local_output=False)
    of_recipe = {
        "plain": {
            "embedding.position": Positions(x),
            "blocks.*.attention_norm": Norm(x),
            "blocks.*.attention.qkv": column,
            "blocks.*.attention.proj": row,
            "blocks.*.mlp_norm": Norm(x),
            "blocks.*.mlp.fc": column,
            "blocks.*.mlp.proj": row,
        },
        "fast": {"blocks.*.norm": Norm(x), "blocks.*.inward": column, "blocks.*.outward": row},
    }
    return {
        "embedding.token": Embedding(x),
        **of_recipe[recipe],
        "norm": Norm(x),
        "head": ColwiseParallel(input_layouts=x, use_local_output=False),
    }


class Embedding(ParallelStyle):
    """Rows cut over ranks, as in tp.py; what a rank finds, [B, T, C], is a partial sum.

    torch's style masks the rows that a rank has not only after the sum of fast.py, which fails (torch 2.6).
    """

    def __init__(self, x):
        super().__init__()
        self.x = x

    def _apply(self, layer, mesh):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(0)]))
        sums = isinstance(layer, SumEmbedding)

        def forward(rows):
            weight = layer.weight.to_local()
            found = look_up(rows, weight, mesh.get_local_rank() * len(weight))
            found = found.sum(-2) if sums else found  # [B, T, C]
            return DTensor.from_local(found, mesh, [Partial()], run_check=False).redistribute(placements=[self.x])

        layer.forward = forward
        return layer


class Positions(ParallelStyle):
    """A replicated embedding of the positions; [T, C] lies as x does."""

    def __init__(self, x):
        super().__init__()
        self.along_time = Shard(0) if x.is_shard() else Replicate()

    def _apply(self, layer, mesh):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Replicate()]))

        def forward(positions):
            everywhere = DTensor.from_local(positions, mesh, [Replicate()], run_check=False)
            return F.embedding(everywhere, layer.weight).redistribute(placements=[self.along_time])

        layer.forward = forward
        return layer


class Norm(SequenceParallel):
    """A replicated norm, of x as it lies: torch's style knows x cut along T only."""

    def __init__(self, x):
        super().__init__()
        self.sequence_sharding = (x,)

    def _apply(self, layer, mesh):
        """Once: torch 2.6 finds the last norm, `norm`, by `blocks.*.norm` too, and would cut a DTensor again."""
        return layer if any(isinstance(p, DTensor) for p in layer.parameters()) else super()._apply(layer, mesh)


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    tp.check(config, world_size)
    if config.sequence_parallel == "on" and config.block_size % world_size:
        raise ValueError(
            f"--sequence-parallel on cuts the sequence: --block-size {config.block_size} is not a multiple of the "
            f"{world_size} ranks"
        )


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    return tp.shard_description(config, symbols, rank, world_size)


def prepare(model, config):
    """The model as this rank trains it: its parameters are DTensors, cut as in `plan`."""
    watch()
    model.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ties = tied(model)
    mesh = init_device_mesh(own_device().type, (dist.get_world_size(),))
    for layer in (model.embedding.token, model.head):
        fill_up(layer, mesh.size())
    parallelize_module(model, mesh, plan(config.recipe, config.sequence_parallel == "on"))
    retie(model, ties)
    model.group = mesh.get_group()
    return sharding.fill(model, shards)


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: all of it."""
    return tokens, targets


def mean_loss(model, tokens, targets, count):
    """The cross-entropy, a scalar, averaged over the `count` tokens of the whole batch; equal on every rank.

    A sum, divided here: the mean of a DTensor that is cut would travel as ReduceOp.AVG, which gloo does not have.
    """
    logits = model(tokens)  # [B, T, V], a DTensor, of which [B, T, ceil(V/R)] is here
    mesh, layout, first = logits.device_mesh, logits.placements, model.head.weight.to_local().shape[0]
    here = mask_padding(logits.to_local(), mesh.get_local_rank() * first, model.shapes["head.weight"][0])
    logits = DTensor.from_local(here, mesh, layout, run_check=False)
    with loss_parallel():
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").to_local() / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients, and with the last microbatch lay them out as the parameters. Returns the loss."""
    loss = mean_loss(model, tokens, targets, count)
    with loss_parallel():
        loss.backward()
    if last:
        lay_out_gradients(model)
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch, a scalar, equal on every rank: each has it already."""
    return loss


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar. One all-reduce of a scalar, as in tp.py."""
    return sharding.gradient_norm(shards(model), model.group)


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return {name: shard_of(parameter, model.shapes[name]) for name, parameter in model.named_parameters()}
