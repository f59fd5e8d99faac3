"""One process with the whole model.

The functions that tp.py has too, in its order: `diff none.py tp.py` shows what tensor parallelism is.

Legend: B batch, T time, V symbols.
"""

import torch
from torch.nn import functional as F


def check(config, world_size):
    """ValueError if the model cannot be divided over so many ranks."""
    if world_size != 1:
        raise ValueError(f"--parallel none is 1 process, but {world_size} were started; try --parallel tp")


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    return "the whole model"


def prepare(model, rank, world_size):
    """The model as this rank trains it."""
    return model


def local_batch(tokens, targets):
    """What this rank works on of a batch: all of it."""
    return tokens, targets


def mean_loss(model, tokens, targets):
    """Cross-entropy, averaged over the tokens [B, T] of the batch; a scalar."""
    logits = model(tokens)  # [B, T, V]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar."""
    return torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()


def full_state(model, tensors):
    """Tensors that are shaped as the model's parameters, by name, as they are without parallelism."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def local_state(model, tensors):
    """This rank's part of `full_state`: the inverse."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
