"""The collectives, counted and timed. Every byte between ranks goes through here while a model trains.

A collective's time is from its call to its end: the transfer, and the wait for the slowest rank.
"""

import time
from collections import Counter
from contextlib import contextmanager

import torch
import torch.distributed as dist

calls = Counter()  # kind -> collectives since the start: forward, backward, gradient_norm, state
seconds = Counter()  # kind -> time in them


@contextmanager
def counted(kind):
    start = time.perf_counter()
    yield
    calls[kind] += 1
    seconds[kind] += time.perf_counter() - start


def all_reduce(tensor, kind, op=dist.ReduceOp.SUM):
    """A new tensor of the same shape, the sum (or `op`) over all ranks, equal on each."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    with counted(kind):
        dist.all_reduce(result, op)
    return result


def all_gather(tensor, kind):
    """The tensors of all ranks, which have one shape, as a list in the order of ranks, on each rank."""
    results = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    with counted(kind):
        dist.all_gather(results, tensor.contiguous())
    return results
