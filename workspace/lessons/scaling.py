"""How much faster are more ranks? Strong scaling: the same batch for all; weak scaling: the same batch for each.

lessons/follow --ntasks-per-node=2 jobs/lesson.sbatch scaling
lessons/follow --ntasks-per-node=2 jobs/lesson.sbatch scaling --batch 4
"""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from ranks import environment, rendezvous

TOKENS, CHANNELS, LAYERS = 16, 256, 4  # of a sequence; of the model
REPEATS = 12  # steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="sequences in a step")
    options = parser.parse_args()
    try:
        env = environment.read()
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= env.world_size]
        if options.batch < sizes[-1]:
            raise ValueError(f"--batch {options.batch}: give each of {sizes[-1]} ranks a sequence")
    except ValueError as error:
        sys.exit(f"scaling: error: {error}")
    with rendezvous.process_group(env, "gloo", 120):
        groups = {size: dist.new_group(range(size)) for size in sizes}  # the first ranks work, the others wait
        for name, batches in (
            (f"strong scaling: {options.batch} sequences for all", {size: options.batch // size for size in sizes}),
            (f"weak scaling: {options.batch} sequences for each", dict.fromkeys(sizes, options.batch)),
        ):
            times = {size: measure(env, groups[size], batches[size]) for size in sizes}
            if env.rank == 0:
                table(name, batches, times)


def measure(env, group, batch):
    """(seconds of a step, seconds of it in the all-reduce), on rank 0: the fastest, for others are disturbed."""
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(CHANNELS, CHANNELS), nn.GELU())))
    x = torch.randn(batch * TOKENS, CHANNELS)
    steps = []
    dist.barrier()
    if dist.get_rank(group) >= 0:
        for _ in range(REPEATS):
            dist.barrier(group)
            start = time.perf_counter()
            model.zero_grad()
            model(x).square().mean().backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            computed = time.perf_counter()
            dist.all_reduce(gradient, group=group)
            end = time.perf_counter()
            steps.append((end - start, end - computed))
    dist.barrier()
    return min(steps, default=(0, 0))


def table(name, batches, times):
    """Print a row for each number of ranks. Speed counts sequences a second, so that both tables can be compared."""
    print(f"{name}\nranks  sequences each  ms a step  in all-reduce  speedup  efficiency")
    alone = batches[1] / times[1][0]
    for size, (step, summing) in times.items():
        speedup = size * batches[size] / step / alone
        print(
            f"{size:5}  {batches[size]:14}  {step * 1e3:9.1f}  {summing / step:13.0%}  {speedup:7.2f}  "
            f"{speedup / size:10.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
