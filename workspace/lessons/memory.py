"""How many bytes a rank keeps for each parameter of the model, after a step with AdamW; beside the prediction.

srun python3 -m lessons.memory none
lessons/follow jobs/lesson.sbatch memory ddp zero1 fsdp
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from parallel import fsdp
from ranks import environment, rendezvous

CHANNELS, LAYERS = 1024, 4
# Bytes a parameter in float32, over how many ranks they are sharded: weights, gradients, AdamW's two averages.
KEEPS = {
    "none": lambda ranks: (4, 4, 8),
    "ddp": lambda ranks: (4, 4, 8),
    "zero1": lambda ranks: (4, 4, 8 / ranks),
    "fsdp": lambda ranks: (4 / ranks, 4 / ranks, 8 / ranks),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("strategies", nargs="+", choices=KEEPS)
    parser.add_argument("--one-unit", action="store_true", help="fsdp: gather the whole model at once, not by layers")
    options = parser.parse_args()
    try:
        env = environment.read()
        if (env.world_size > 1) == ("none" in options.strategies):
            raise ValueError("none is for one rank, every other strategy for several")
    except ValueError as error:
        sys.exit(f"memory: error: {error}")
    with rendezvous.process_group(env, "gloo", 120):
        gathered = watch_gathering()
        for strategy in options.strategies:
            model = nn.Sequential(*(nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(LAYERS)))
            count = sum(parameter.numel() for parameter in model.parameters())
            model, optimizer = prepare(model, strategy, options.one_unit)
            model(torch.randn(16, CHANNELS)).square().mean().backward()
            optimizer.step()
            if env.rank == 0:
                report(strategy, env.world_size, count, kept(model, optimizer))
        if gathered and env.rank == 0:
            print(f"fsdp gathers at most {max(gathered):,} of {count:,} parameters at a time")


def prepare(model, strategy, one_unit):
    """The model as the strategy trains it, and its optimizer."""
    if strategy == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in () if one_unit else model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif strategy != "none":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if strategy == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return model, torch.optim.AdamW(model.parameters())


def watch_gathering():
    """A list, to which each all-gather of parameters adds its size. Lets FSDP run on a CPU, too."""
    fsdp.mend()
    gather, sizes = getattr(dist, fsdp.GATHER), []

    def watched(*arguments, **options):
        output = arguments[0] if arguments else options["output_tensor"]  # torch 2.6 gives it by name
        sizes.append(output.numel())
        return gather(*arguments, **options)

    setattr(dist, fsdp.GATHER, watched)
    return sizes


def kept(model, optimizer):
    """Bytes of this rank's weights, gradients and optimizer state."""
    inner = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's own part of the state
    weights = list(model.parameters())
    state = [each for values in inner.state.values() for name, each in values.items() if name != "step"]
    return [size(weights), size([weight.grad for weight in weights]), size(state)]


def size(tensors):
    local = [getattr(tensor, "to_local", lambda whole=tensor: whole)() for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def report(strategy, ranks, count, found):
    """Print the table; by rank 0."""
    predicted, measured = KEEPS[strategy](ranks), [each / count for each in found]
    print(f"{strategy} on {ranks} rank{'s' * (ranks > 1)}, {count:,} parameters; bytes a parameter on rank 0")
    for name, guess, each in zip(("weights", "gradients", "AdamW"), predicted, measured, strict=True):
        print(f"{name:<12}{each:6.2f}   predicted {guess:6.2f}")
    same = "as predicted" if sum(measured) == sum(predicted) else "NOT as predicted"
    print(f"{'together':<12}{sum(measured):6.2f}   {same}; {sum(found) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
