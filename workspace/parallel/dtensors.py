"""DTensors, torch's tensors that know how they lie over the ranks: what tp_dtensor.py and fsdp.py do to them.

Most of it mends what torch 2.6 leaves undone without a word; each function says what that is.
"""

from functools import wraps

import torch
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import DTensor, Replicate

from ranks.communication import all_reduce, counted, phase
from ranks.sharding import Shard


def shard_of(parameter, shape=None):
    """Shard of a DTensor on a mesh of one dimension. `shape` is that of the parameter without what fills it up."""
    (placement,) = parameter.placements
    if not placement.is_shard():
        return Shard(parameter)
    dimension, size = placement.dim, (shape or parameter.shape)[placement.dim]
    mesh = parameter.device_mesh
    length = -(-parameter.shape[dimension] // mesh.size())  # as torch.chunk cuts: the last parts may be short, or empty
    start = mesh.get_local_rank() * length
    return Shard(parameter, dimension, min(start, size), min(start + length, size), size)


def watch():
    """Count and time the collectives that DTensor makes on its own; called twice it does no more than once.

    Each is waited for where it starts, so that its time is known. Nothing is lost by that: what torch's layers start
    they use in the next line. What ends in _tensor here ends in _single in torch 2.14.
    """
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        name = next(each for each in (f"{kind}_single", f"{kind}_tensor", kind) if hasattr(functional, each))
        collective = getattr(functional, name)
        if not hasattr(collective, "__wrapped__"):
            setattr(functional, name, watched(collective, kind))


def watched(collective, name):
    """A functional collective that is counted and timed, and over when it returns."""

    @wraps(collective)
    def wrapper(*arguments, **options):
        with counted(phase() if name == "all_reduce" else f"{phase()} {name}"):
            result = collective(*arguments, **options)
            return result.wait() if isinstance(result, functional.AsyncCollectiveTensor) else result

    return wrapper


def fill_up(layer, world_size):
    """Rows of zeros, so that every rank has as many rows: mask_padding keeps them out of the softmax.

    torch 2.6 manages unequal numbers of rows, but if a rank has none loss_parallel hangs: it leaves out an all-reduce
    there, in which the others wait.
    """
    rows, columns = layer.weight.shape
    layer.weight = nn.Parameter(torch.cat((layer.weight.detach(), layer.weight.new_zeros(-rows % world_size, columns))))


def tied(model):
    """Lists of the names that one parameter has, of those with several."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def retie(model, ties):
    """Make names one parameter again: parallelize_module gives each module a DTensor of its own, without a word."""
    for first, *others in ties:
        for name in others:
            layer, _, ending = name.rpartition(".")
            setattr(model.get_submodule(layer), ending, model.get_parameter(first))


def lay_out_gradients(model):
    """Give each gradient the layout of its parameter, which torch 2.6 does not.

    Under a cut sequence those of the norms are partial, each rank's part of a sum: torch's clip_grad_norm_ gets their
    norm wrong. All are summed in one all-reduce. That of the embedding is whole: this rank takes its rows.
    """
    partial = [p for p in model.parameters() if p.grad.placements[0].is_partial()]
    if partial:
        summed = all_reduce(torch.cat([p.grad.to_local().flatten() for p in partial]), "backward", group=model.group)
        for parameter, values in zip(partial, summed.split([p.numel() for p in partial]), strict=True):
            whole = values.view(parameter.shape)
            parameter.grad = DTensor.from_local(whole, parameter.device_mesh, [Replicate()], run_check=False)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
