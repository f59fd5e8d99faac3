"""Which part of which parameter a rank holds: all that checkpoints and the shard map need to know of a strategy."""

from dataclasses import dataclass, field

import torch
from torch import nn

from ranks.communication import all_reduce, own_device


@dataclass(frozen=True)
class Shard:
    """A rank's part of a parameter: `start` to `stop` of the `size` places in `dimension`; all of it if that is None.

    The rank's tensor may be longer than the part, if the ranks do not divide it: what fills it up comes last.
    """

    parameter: nn.Parameter
    dimension: int | None = None
    start: int = 0
    stop: int = 0
    size: int = 0
    copies: object = field(default=None, compare=False)  # the group of ranks that hold the same, with the same gradient

    def part(self, tensor):
        """A tensor that is shaped as the parameter, without what fills it up."""
        tensor = local(tensor.detach())
        return tensor if self.dimension is None else tensor.narrow(self.dimension, 0, self.stop - self.start)

    def place(self):
        """Where the part is, in plain values: (dimension, start, stop, size)."""
        return self.dimension, self.start, self.stop, self.size

    def take(self, place, part, tensor):
        """Copy what a part of the whole tensor, at `place`, has of this rank's into `tensor`, shaped as the parameter.

        The two may be cut along different dimensions: then each is whole where the other is cut.
        """
        (dimension, start, stop, _), mine = place, self.part(tensor)
        if dimension is not None and dimension == self.dimension:
            first, end = max(start, self.start), min(stop, self.stop)
            if first >= end:
                return
            part = part.narrow(dimension, first - start, end - first)
            mine = mine.narrow(dimension, first - self.start, end - first)
        else:
            if self.dimension is not None:
                part = part.narrow(self.dimension, self.start, self.stop - self.start)
            if dimension is not None:
                mine = mine.narrow(dimension, start, stop - start)
        mine.copy_(part)

    def record(self):
        """For the shard map: the whole shape, and the place in it."""
        shape = list(local(self.parameter).shape)
        if self.dimension is not None:
            shape[self.dimension] = self.size
        return {"shape": shape, "dimension": self.dimension, "start": self.start, "stop": self.stop}


def whole(model, copies=None):
    """Shards of a model that is whole on this rank."""
    return {name: Shard(parameter, copies=copies) for name, parameter in model.named_parameters()}


@torch.no_grad()
def fill(model, shards, device=None):
    """Give a model of meta tensors memory on the device that this rank computes on, and its part of each weight.

    `shards(model)` says what is here. A model that has weights is returned as it is.
    """
    if not any(parameter.is_meta for parameter in model.parameters()):
        return model
    device = device or own_device()
    model._apply(lambda tensor: torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor.to(device))
    mine = shards(model)
    for name, whole_tensor in model.weights():
        if name in mine:
            mine[name].take((None, 0, 0, 0), whole_tensor, mine[name].parameter)
    return model


def local(tensor):
    """The part of a DTensor that is here; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def gradient_norm(shards, group=None):
    """The norm of the gradient of the whole model, a scalar. One all-reduce of a scalar over the ranks of the group.

    The squares of parts are summed over ranks; replicated parameters count once.
    """
    squares = {True: 0.0, False: 0.0}
    for shard in shards.values():
        squares[shard.dimension is not None] += local(shard.parameter.grad).square().sum()
    return (all_reduce(squares[True], "gradient_norm", group=group) + squares[False]).sqrt()


def join(parts):
    """Whole tensors by name from the (place, tensor) by name of every rank. LookupError if a part is missing."""
    parts, state = list(parts), {}
    require_all(parts)
    for rank_parts in parts:
        for name, ((dimension, start, stop, size), tensor) in rank_parts.items():
            if dimension is None:
                state[name] = tensor
                continue
            if name not in state:
                shape = [*tensor.shape[:dimension], size, *tensor.shape[dimension + 1 :]]
                state[name] = tensor.new_empty(shape)
            state[name].narrow(dimension, start, stop - start).copy_(tensor)
    return state


def require_all(parts):
    """LookupError if the (place, tensor) by name of every rank leave out a part of a tensor."""
    filled = {}
    for rank_parts in parts:
        for name, ((dimension, start, stop, size), _) in rank_parts.items():
            if dimension is not None:
                filled.setdefault(name, torch.zeros(size, dtype=torch.bool))[start:stop] = True
    for name, places in filled.items():
        if not places.all():
            raise LookupError(f"no rank has place {places.logical_not().nonzero()[0].item()} of {name}")
