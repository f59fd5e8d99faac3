"""Tensor parallelism: every rank works on every token, with its share of the heads, the MLP and the vocabulary.

The functions of none.py, in its order. Legend: B batch, T time, V symbols, R ranks.
"""

import torch.distributed as dist

from communication import all_gather, all_reduce
from tp_layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelCrossEntropy,
    VocabParallelEmbedding,
    VocabParallelHead,
    cut,
    join,
)

# Which layer is cut how, by the end of its name. All others are replicated: the norms.
PLAN = {
    "token_embedding": VocabParallelEmbedding,  # forward 1 all-reduce
    "attention.qkv": ColumnParallelLinear,  # backward 1
    "attention.projection": RowParallelLinear,  # forward 1
    "mlp.up": ColumnParallelLinear,  # backward 1
    "mlp.down": RowParallelLinear,  # forward 1
    "head": VocabParallelHead,  # backward 1, and forward 3 in the loss
}  # for L layers: forward 2 L + 4, backward 2 L + 1


def check(config, world_size):
    """ValueError if the model cannot be divided over so many ranks."""
    if config.heads % world_size:
        raise ValueError(
            f"--heads {config.heads} cannot be divided over {world_size} ranks; start a divisor of {config.heads}"
        )


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""

    def share(count, of):
        size = -(-count // world_size)
        first, last = rank * size, min((rank + 1) * size, count) - 1
        return f"{first}-{last} of {of}" if last >= first else f"none of {of}"

    columns, filled = 4 * config.channels, symbols + -symbols % world_size
    vocabulary = symbols if filled == symbols else f"{symbols}({filled})"
    return (
        f"heads {share(config.heads, config.heads)}, MLP columns {share(columns, columns)}, "
        f"vocabulary rows {share(symbols, vocabulary)}"
    )


def prepare(model, rank, world_size):
    """The model as this rank trains it: the layers of PLAN replaced, in place, by the rank's slice of them."""
    for name, layer in list(model.named_modules()):
        for ending, parallel in PLAN.items():
            if name.endswith(ending):
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, parallel(layer, rank, world_size))
    return model


def local_batch(tokens, targets):
    """What this rank works on of a batch: all of it."""
    return tokens, targets


def mean_loss(model, tokens, targets):
    """Cross-entropy, averaged over the tokens [B, T] of the batch; a scalar, equal on every rank."""
    logits = model(tokens)  # [B, T, ceil(V/R)]
    return VocabParallelCrossEntropy.apply(logits, targets, model.head.first).mean()


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar. One all-reduce of a scalar.

    The squares of slices are summed over ranks; replicated parameters count once.
    """
    squares = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        squares[cut_dimension(model, name) is not None] += parameter.grad.square().sum()
    return (all_reduce(squares[True], "gradient_norm") + squares[False]).sqrt()


def full_state(model, tensors):
    """Tensors that are shaped as the model's parameters, by name, as they are without parallelism; on every rank."""
    state = {}
    for name, tensor in tensors.items():
        dimension = cut_dimension(model, name)
        if dimension is None:
            state[name] = tensor.detach().clone()
        else:
            state[name] = join(
                all_gather(tensor.detach(), "state"), dimension, whole_size(model, name, tensor, dimension)
            )
    return state


def local_state(model, tensors):
    """This rank's part of `full_state`: the inverse."""
    state = {}
    for name, tensor in tensors.items():
        dimension = cut_dimension(model, name)
        if dimension is None:
            state[name] = tensor.detach().clone()
        else:
            state[name] = cut(tensor, dimension, dist.get_rank(), dist.get_world_size())
    return state


def cut_dimension(model, name):
    """The dimension in which a parameter is cut, None if it is replicated."""
    layer, _, parameter = name.rpartition(".")
    return getattr(model.get_submodule(layer), "cuts", {}).get(parameter)


def whole_size(model, name, tensor, dimension):
    """The size of a cut parameter in its cut dimension, before `cut` filled it up, as only the vocabulary needs."""
    layer = model.get_submodule(name.rpartition(".")[0])
    return getattr(layer, "symbols", tensor.shape[dimension] * dist.get_world_size())
