"""One process with the whole model.

Every strategy is a file with these functions, in this order: `diff none.py ddp.py` shows what data parallelism is,
`diff ddp.py tp.py` how it differs from tensor parallelism.

Legend: B batch, T time, V symbols.
"""

from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from ranks import sharding


def check(config, world_size):
    """ValueError if the work cannot be divided over so many ranks."""
    if world_size != 1:
        raise ValueError(f"--parallel none is 1 process, but {world_size} were started; try --parallel tp")


def shard_description(config, symbols, rank, world_size):
    """What a rank holds, in words."""
    return "the whole model"


def prepare(model, config):
    """The model as this rank trains it."""
    return sharding.fill(model, shards)


def local_batch(model, tokens, targets):
    """What this rank works on of a batch: all of it."""
    return tokens, targets


def mean_loss(model, tokens, targets, count):
    """This rank's part of the mean cross-entropy, a scalar: its tokens' sum over `count`, the tokens of all ranks.

    Tokens and targets [B, T] are the local batch, or a microbatch of it. `whole_loss` adds up the parts.
    """
    logits = model(tokens)  # [B, T, V]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count


def backward(model, tokens, targets, count, last):
    """Add to the gradients; `last` says that no microbatch is left. Returns this rank's part of the loss."""
    loss = mean_loss(model, tokens, targets, count)
    loss.backward()
    return loss.detach()


def whole_loss(model, loss):
    """The loss of the whole batch from the parts of all ranks, a scalar, equal on every rank."""
    return loss


def gradient_norm(model):
    """The norm of the gradient of the whole model, a scalar, equal on every rank."""
    return get_total_norm([parameter.grad for parameter in model.parameters()])


def shards(model):
    """What this rank holds: Shard by the name that the parameter has in the whole model."""
    return sharding.whole(model)
