"""Tensor parallelism: every rank works on every token, with its share of the heads, the MLP and the vocabulary.

The functions of none.py, in its order. Legend: B batch, T time, V symbols, R ranks.
"""

from parallel.tp_layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelCrossEntropy,
    VocabParallelEmbedding,
    VocabParallelHead,
    VocabParallelSumEmbedding,
)
from ranks import sharding
from ranks.sharding import Shard

# Which layer is cut how, by the end of its name. All others are replicated: positions and norms.
PLAN = {
    "embedding.token": VocabParallelEmbedding,  # forward 1 all-reduce
    "attention.qkv": ColumnParallelLinear,  # backward 1
    "attention.proj": RowParallelLinear,  # forward 1
    "mlp.fc": ColumnParallelLinear,  # backward 1
    "mlp.proj": RowParallelLinear,  # forward 1
    "head": VocabParallelHead,  # backward 1, and forward 3 in the loss
}  # for L layers: forward 2 L + 4, backward 2 L + 1

# The same for --recipe fast, whose blocks are one pair: forward L + 4, backward L + 1.
PLAN_FAST = {
    "embedding.token": VocabParallelSumEmbedding,
    "inward": ColumnParallelLinear,
    "outward": RowParallelLinear,
    "head": VocabParallelHead,
}


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
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


def prepare(model, config, group=None):
    """The model as this rank trains it: the layers of the plan replaced, in place, by the rank's slice of them."""
    plan = PLAN_FAST if config.recipe == "fast" else PLAN
    for name, layer in list(model.named_modules()):
        for ending, parallel in plan.items():
            if name.endswith(ending):
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, parallel(layer, group))
    model.group = group
    return sharding.fill(model, shards)


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: all of it."""
    return tokens, targets


def mean_loss(model, tokens, targets, count):
    """The cross-entropy, a scalar, averaged over the `count` tokens of the whole batch; equal on every rank.

    Tokens and targets [B, T] are the batch, or a microbatch of it.
    """
    logits = model(tokens)  # [B, T, ceil(V/R)]
    head = model.head
    return VocabParallelCrossEntropy.apply(logits, targets, head.first, head.group).sum() / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients, which f and g make whole on the way. Returns the loss."""
    loss = mean_loss(model, tokens, targets, count)
    loss.backward()
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch, a scalar, equal on every rank: each has it already."""
    return loss


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar. One all-reduce of a scalar.

    The squares of slices are summed over ranks; replicated parameters count once.
    """
    return sharding.gradient_norm(shards(model), model.group)


def shards(model, copies=None):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    found = {}
    for name, parameter in model.named_parameters():
        layer, _, ending = name.rpartition(".")
        place = getattr(model.get_submodule(layer), "places", {}).get(ending, ())
        found[name] = Shard(parameter, *place, copies=copies)
    return found
