"""Data and tensor parallelism at once, on a mesh of ranks: each row of `tp_size` ranks shares one model, as in tp.py;
the rows are copies that share the batch, as in ddp.py.

    --tp-size 2, 4 ranks:      rank 0, rank 1   heads 0-1, heads 2-3   of the first half of the batch
                               rank 2, rank 3   heads 0-1, heads 2-3   of the second half

Rows are the fast direction: tensor parallelism talks in every layer, data parallelism once in a step. The functions of
none.py, in its order. Legend: B batch, T time, V symbols, D data-parallel ranks, R tensor-parallel ranks.
"""

from contextlib import nullcontext

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from parallel import ddp, tp
from parallel.tp_layers import VocabParallelCrossEntropy
from ranks.communication import own_device


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    if world_size % config.tp_size:
        raise ValueError(f"{world_size} rank(s) cannot be divided into rows of --tp-size {config.tp_size}")
    tp.check(config, config.tp_size)
    ddp.check(config, world_size // config.tp_size)


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    row, column = divmod(rank, config.tp_size)
    sequences = ddp.share(config.batch_size, row, world_size // config.tp_size)
    held = tp.shard_description(config, symbols, column, config.tp_size)
    return f"{held}, {sequences} of {config.batch_size} sequences"


def prepare(model, config):
    """The model as this rank trains it: its slice of the model, and a wrapper that sums over the rows."""
    shape = (dist.get_world_size() // config.tp_size, config.tp_size)
    device = own_device().type
    mesh = init_device_mesh(device, shape, mesh_dim_names=("dp", "tp"))
    return ddp.prepare(tp.prepare(model, config, mesh["tp"].get_group()), config, mesh["dp"].get_group())


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: the share of its row."""
    return ddp.local_batch(model, tokens, targets)


def mean_loss(model, tokens, targets, count):
    """This row's part of the cross-entropy, a scalar, averaged over the `count` tokens of the whole batch."""
    logits, head = model(tokens), model.module.head  # [B/D, T, ceil(V/R)]
    return VocabParallelCrossEntropy.apply(logits, targets, head.first, head.group).sum() / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients; only the last microbatch sums them over the rows. Returns this row's part of the loss."""
    with nullcontext() if last else model.no_sync():
        loss = mean_loss(model, tokens, targets, count)
        (loss * dist.get_world_size(model.process_group)).backward()
    if last:
        model.buckets.waited()
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch from the parts of all rows, a scalar, equal on every rank. One all-reduce of it."""
    return ddp.whole_loss(model, loss)


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar: every row has all of it. One all-reduce of a scalar."""
    return tp.gradient_norm(model.module)


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return tp.shards(model.module, copies=model.process_group)
