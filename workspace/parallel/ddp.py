"""Data parallelism: every rank has the whole model and works on its share of the batch.

The functions of none.py, in its order. Legend: B batch, T time, V symbols, R ranks.
"""

from contextlib import nullcontext

import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from ranks import sharding
from ranks.communication import Buckets, all_reduce


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    if config.batch_size < world_size * config.accumulate:
        raise ValueError(
            f"--batch-size {config.batch_size} cannot be divided over {world_size} ranks, each in "
            f"{config.accumulate} microbatch(es): give {world_size * config.accumulate} or more"
        )


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    return f"the whole model, {share(config.batch_size, rank, world_size)} of {config.batch_size} sequences"


def prepare(model, config, group=None):
    """The model as this rank trains it: behind a wrapper that sums gradients while backward goes on. With `--all-reduce
    socket` backward waits for each bucket, which is sooner where a rank has one core.

    Gradients travel in buckets of `bucket_mb` MB, the last layers first, each as soon as it is full. In the first step
    there is one bucket: the order in which gradients come is not known yet.
    Source: Li et al. 2020, PyTorch Distributed, https://arxiv.org/abs/2006.15704.
    """
    wrapped = DistributedDataParallel(
        sharding.fill(model, sharding.whole),
        process_group=group,
        bucket_cap_mb=config.bucket_mb,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )
    wrapped.buckets = Buckets(wrapped)
    return wrapped


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: its share of the sequences. B need not divide by R: shares differ by one."""
    rank, world_size = dist.get_rank(model.process_group), dist.get_world_size(model.process_group)
    return tokens.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]


def mean_loss(model, tokens, targets, count):
    """This rank's part of the mean cross-entropy, a scalar: its tokens' sum over `count`, the tokens of all ranks.

    Dividing by the whole batch, not by the share, makes unequal shares count as they should.
    """
    logits = model(tokens)  # [B/R, T, V]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients; only the last microbatch sums them over ranks. Returns this rank's part of the loss.

    DistributedDataParallel averages over R ranks, and the sum is wanted: hence R times the loss.
    """
    with nullcontext() if last else model.no_sync():
        loss = mean_loss(model, tokens, targets, count)
        (loss * dist.get_world_size(model.process_group)).backward()
    if last:
        model.buckets.waited()
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch from the parts of all ranks, a scalar, equal on every rank. One all-reduce of it."""
    return all_reduce(loss, "loss", group=model.process_group)


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar. Nothing is sent: every rank has the summed gradient."""
    return get_total_norm([parameter.grad for parameter in model.parameters()])


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return sharding.whole(model.module, copies=model.process_group)


def share(count, rank, world_size):
    """How many of `count` a rank gets, as tensor_split cuts them."""
    return count // world_size + (rank < count % world_size)
