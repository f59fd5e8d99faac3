"""Lesson 8: a product of two matrices, each cut over ranks, as DTensors: what each rank holds, and what is sent when.

lessons/follow jobs/lesson.sbatch dtensor
"""

import argparse
import sys
import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from ranks import environment, rendezvous


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--forget", action="store_true", help="take a partial sum for the whole")
    forget = parser.parse_args().forget
    try:
        env = environment.read()
    except ValueError as error:
        sys.exit(f"dtensor: error: {error}")
    warnings.filterwarnings("ignore", message="DTensor random")  # nothing here is random
    with rendezvous.process_group(env, "gloo", 120):
        mesh = init_device_mesh("cpu", (env.world_size,))
        whole_x, whole_w = torch.ones(2, 4), torch.arange(8.0).view(4, 2)
        x = distribute_tensor(whole_x, mesh, [Shard(1)])  # columns, like what a column-parallel layer gives
        w = distribute_tensor(whole_w, mesh, [Shard(0)])  # rows: a row-parallel layer
        y = x @ w  # nothing is sent: each rank multiplies what it has
        summed = y if forget else y.redistribute(placements=[Replicate()])  # one all-reduce, *g* of tp_layers.py
        rows = {"x": x, "w": w, "y = x @ w": y, "y, at the end": summed}
        ranks = rendezvous.gather([shown(tensor.to_local()) for tensor in rows.values()])
        if env.rank == 0:
            heads = "".join(f"rank {rank}".ljust(22) for rank in range(env.world_size))
            print(f"{'':<15}{'whole':<7}{'placement':<14}{heads}".rstrip())
            for (name, tensor), *cells in zip(rows.items(), *ranks, strict=True):
                shape, cells = "x".join(map(str, tensor.shape)), "".join(cell.ljust(22) for cell in cells)
                print(f"{name:<15}{shape:<7}{word(tensor.placements[0]):<14}{cells}".rstrip())
            same = "is" if all(cells[-1] == shown(whole_x @ whole_w) for cells in ranks) else "is NOT"
            print(f"what each rank ends with {same} the product: {shown(whole_x @ whole_w)}")


def shown(tensor):
    return " | ".join(" ".join(f"{value:g}" for value in row) for row in tensor.tolist())


def word(placement):
    if placement.is_shard():
        return ("rows cut", "columns cut")[placement.dim]
    return "partial sum" if placement.is_partial() else "replicated"


if __name__ == "__main__":
    main()
