"""Lesson 3: what each rank has before and after the four collectives that all parallel training is made of.

lessons/follow jobs/lesson.sbatch collectives
"""

import argparse
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from ranks import environment, rendezvous


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave-out", type=int, default=-1, help="a rank that does not come to the all_reduce")
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait in a collective")
    options = parser.parse_args()
    try:
        env = environment.read()
    except ValueError as error:
        sys.exit(f"collectives: error: {error}")
    with rendezvous.process_group(env, "gloo", 120):
        group = dist.new_group(timeout=timedelta(seconds=options.timeout))
        mine = 10 * (env.rank + 1) + torch.arange(env.world_size)  # rank 0: 10, 11, ..; rank 1: 20, 21, ..
        rows = {"before": mine}
        rows["broadcast"] = mine.clone()
        dist.broadcast(rows["broadcast"], src=0, group=group)
        rows["all_reduce"] = mine.clone()
        try:
            if env.rank == options.leave_out:
                dist.recv(torch.empty(1), group=group)  # it waits for something else: a message that nobody sends
            dist.all_reduce(rows["all_reduce"], group=group)
        except RuntimeError:
            where = "elsewhere" if env.rank == options.leave_out else "in all_reduce"
            os.write(2, f"rank {env.rank} waited {where}, in vain\n".encode())
            os._exit(1)  # gloo's threads still wait
        rows["all_gather"] = mine.new_empty(env.world_size * len(mine))
        dist.all_gather_into_tensor(rows["all_gather"], mine, group=group)
        rows["reduce_scatter"] = mine.new_empty(1)
        dist.reduce_scatter_tensor(rows["reduce_scatter"], mine, group=group)
        table(rendezvous.gather({name: " ".join(map(str, row.tolist())) for name, row in rows.items()}), env.rank)


def table(ranks, rank):
    """Print a row for each collective and a column for each rank; by rank 0."""
    widths = [max(map(len, column.values())) + 3 for column in ranks]
    if rank == 0:
        heads = "".join(f"rank {number}".ljust(max(9, width)) for number, width in enumerate(widths))
        print(f"{'':<17}{heads}".rstrip())
        for name in ranks[0]:
            cells = "".join(column[name].ljust(max(9, w)) for column, w in zip(ranks, widths, strict=True))
            print(f"{name:<17}{cells}".rstrip())


if __name__ == "__main__":
    main()
