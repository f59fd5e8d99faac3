"""Data parallelism with sharded parameters: every rank works on its share of the batch, and keeps only its rows of
every parameter, gradient and optimizer state. A block's parameters are whole while it runs: gathered, then freed.

The functions of none.py, in its order. Legend: B batch, T time, V symbols, L layers, R ranks.
Source: Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277; this is its second version, fully_shard.

torch 2.6 has FSDP for GPUs only. `mend` adds three things that a CPU and gloo need; later versions have most.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from parallel import ddp
from parallel.dtensors import shard_of, watch
from ranks import sharding
from ranks.communication import all_reduce, counted, own_device, phase

# FSDP looks these two up in torch.distributed by name, and torch 2.14 has new names for them.
GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
if hasattr(dist, "all_gather_single"):
    GATHER, SCATTER = "all_gather_single", "reduce_scatter_single"
all_gather_into_tensor, reduce_scatter_tensor = getattr(dist, GATHER), getattr(dist, SCATTER)


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    ddp.check(config, world_size)


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    sequences = ddp.share(config.batch_size, rank, world_size)
    return f"part {rank + 1} of {world_size} of every parameter, {sequences} of {config.batch_size} sequences"


def prepare(model, config):
    """The model as this rank trains it: each block, and then the rest, with its rows of every parameter only.

    In a step L + 1 all-gathers forward, L again backward, and L + 1 reduce-scatters.
    """
    device_type = own_device().type
    mend(device_type)
    watch()
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return sharding.fill(model, shards)


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: its share of the sequences. B need not divide by R: shares differ by one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return tokens.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]


def mean_loss(model, tokens, targets, count):
    """This rank's part of the mean cross-entropy, a scalar: its tokens' sum over `count`, the tokens of all ranks.

    A rank whose share is empty runs the model all the same: the others need its rows.
    """
    logits = model(tokens)  # [B/R, T, V]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients; only the last microbatch sums them over ranks. Returns this rank's part of the loss.

    FSDP averages over R ranks, and the sum is wanted: hence R times the loss.
    """
    model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)
    loss = mean_loss(model, tokens, targets, count)
    (loss * dist.get_world_size()).backward()
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch from the parts of all ranks, a scalar, equal on every rank. One all-reduce of it."""
    return all_reduce(loss, "loss")


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar: the squares of all parts. One all-reduce of a scalar."""
    return sharding.gradient_norm(shards(model))


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return {name: shard_of(parameter) for name, parameter in model.named_parameters()}


def mend(device_type="cpu"):
    """Let FSDP run on a CPU over gloo, and count what it sends, by replacing functions where FSDP looks them up.

    1. A stream of the CPU lacks two methods (https://github.com/pytorch/pytorch/pull/145935).
    2. Backward gathers a block again. Autograd takes that for a change of the parameters that forward saved.
    3. gloo's reduce-scatter gives a sum where ReduceOp.AVG asks for a mean, and no error.
    """
    for name in ("record_event", "wait_event"):
        if not hasattr(torch.cpu.Stream, name):  # a CPU has one stream, in which everything is done in order
            setattr(torch.cpu.Stream, name, lambda stream, event=None: None)
    if device_type == "cpu":
        torch.ops.fsdp.split_with_sizes_copy = unnoticed_copy
    setattr(dist, GATHER, all_gather)
    setattr(dist, SCATTER, reduce_scatter)


def unnoticed_copy(gathered, sizes, dim, out):
    """Copy what was gathered, [R, sum of n], into each parameter, [R, n]. The values are those of forward, so autograd
    need not notice.
    """
    for parameter, values in zip(out, gathered.split(sizes, dim), strict=True):
        with torch.autograd._unsafe_preserve_version_counter(parameter):
            parameter.copy_(values)


def all_gather(*arguments, **options):
    """all_gather_into_tensor, [n/R] -> [n], counted. On a CPU FSDP waits for it: the time is that of the whole call."""
    with counted(f"{phase()} all_gather"):
        return all_gather_into_tensor(*arguments, **options)


def reduce_scatter(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    """reduce_scatter_tensor, [n] -> [n/R], counted; a mean is a sum, divided afterwards. Timed as the all-gather."""
    average = op == dist.ReduceOp.AVG
    with counted(f"{phase()} reduce_scatter"):
        work = reduce_scatter_tensor(output, input, dist.ReduceOp.SUM if average else op, group, async_op)
    if average:
        output /= dist.get_world_size(group)
    return work
