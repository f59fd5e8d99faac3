"""What a rank needs room for as long as it trains: its parameters, their gradients and the optimizer's state, in bytes.

Activations come and go and are not counted; on a GPU `peak` has them too, and all else that torch allocated there.
"""

import torch

from ranks.sharding import local


def size(tensors):
    """Bytes of what is here of the tensors, which may be None."""
    return sum(local(tensor).nbytes for tensor in tensors if tensor is not None)


def gradients(shards):
    """Bytes of the gradients on this rank."""
    return size(shard.parameter.grad for shard in shards.values())


def kept(shards, optimizer):
    """Bytes of the parameters and of the optimizer's state on this rank."""
    parameters = [shard.parameter for shard in shards.values()]
    states = [value for parameter in parameters for value in optimizer.state.get(parameter, {}).values()]
    return size(parameters) + size(value for value in states if torch.is_tensor(value))


def peak(device):
    """The most bytes that were allocated on this rank's GPU so far; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def described(ranks):
    """A line on the ranks' {"held", "peak"}."""
    most = [each["peak"] for each in ranks if each["peak"] is not None]
    on_gpu = f"; at most {span(most)} on its GPU" if most else ""
    held = span([each["held"] for each in ranks])
    return f"a rank holds {held} of parameters, gradients and optimizer state{on_gpu}"


def span(sizes):
    """Sizes in MB (1e6 bytes), from the smallest to the largest."""
    low, high = (f"{each / 1e6:.1f}" for each in (min(sizes), max(sizes)))
    return f"{low} MB" if low == high else f"{low} to {high} MB"
