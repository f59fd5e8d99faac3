"""The smallest program that proves a launch: every rank finds itself, all sum, and each checks the sum.

It runs under any launcher; ranks/environment.py has the table of their variables. Each rank prints its record; rank 0
then says who was there. Ends with 1, and the reason, unless every rank is there once, on all nodes of the job, and
every number is right.

    srun --ntasks-per-node=8 python3 launchers/distributed_sum.py
    sbatch launchers/torchrun.sbatch launchers/distributed_sum.py --seconds 30
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import environment, rendezvous


def main():
    options = parse()
    try:
        env = environment.read()
        environment.announce(env.record(""))
        with rendezvous.process_group(env, options.backend, options.timeout) as device:
            prove(env, device, options)
    except (ValueError, WrongNumber) as error:
        sys.exit(f"distributed_sum.py: error: {error}")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="auto", choices=("auto", "gloo", "nccl", "mpi"))
    parser.add_argument("--timeout", type=int, default=120, help="seconds to wait for another rank")
    parser.add_argument("--seconds", type=float, default=0, help="go on summing for so long")
    parser.add_argument("--nodes", help="how many nodes the ranks are on, or any (default: all of the Slurm job)")
    return parser.parse_args()


class WrongNumber(Exception):
    """A collective gave what it should not, or the ranks are not where they should be."""


def prove(env, device, options):
    """Sum once and look at who was there; then until `options.seconds` are over."""
    add_up(device)
    first_collective = time.time()
    records = rendezvous.gather(env.record(""))
    check_ranks(records, env, options.nodes)
    if env.rank == 0:
        say(records, device, first_collective)
    sums, end = 1, time.monotonic() + options.seconds
    while agreed(time.monotonic() < end, device):
        add_up(device)
        sums += 1
        time.sleep(0.1)  # not a condition: it is to be there for a while, without filling the network
    if env.rank == 0:
        print(f"{sums} sum(s) over {env.world_size} rank(s): all right", flush=True)


def add_up(device):
    """WrongNumber unless the ranks' squares, each from its rank, add up."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    total = torch.tensor(rank**2, dtype=torch.int64, device=device)
    dist.all_reduce(total)
    expected = (world_size - 1) * world_size * (2 * world_size - 1) // 6
    if total.item() != expected:
        raise WrongNumber(f"the squares of {world_size} ranks add up to {total.item()} on rank {rank}, not {expected}")


def agreed(flag, device):
    """Rank 0's word, on every rank: clocks differ, and all must make the same number of sums."""
    word = torch.tensor(int(flag), device=device)
    dist.broadcast(word, src=0)
    return bool(word.item())


def check_ranks(records, env, nodes):
    """WrongNumber unless the ranks are 0 to world size - 1, and on as many nodes as they should be."""
    ranks = [record["rank"] for record in records]
    if ranks != list(range(dist.get_world_size())):
        raise WrongNumber(f"the ranks call themselves {ranks}")
    hosts = {record["host"] for record in records}
    wanted = None if nodes == "any" else int(nodes or env.job_nodes or len(hosts))
    if wanted and len(hosts) != wanted:
        raise WrongNumber(
            f"the {len(ranks)} ranks are on {len(hosts)} node(s), {', '.join(sorted(hosts))}, the job has {wanted}: "
            "is each node a world of its own?"
        )


def say(records, device, first_collective):
    """Where the ranks are, what they talk over, and when they did so first."""
    nodes = {}
    for record in records:
        nodes.setdefault(record["host"], []).append(record["rank"])
    where = "; ".join(f"{host}: {ranks}" for host, ranks in nodes.items())
    talk = f"{dist.get_backend()} on {device.type}"
    if device.type == "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        talk += f" (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}, but CUDA finds no GPU: emulated?)"
    print(f"{len(records)} rank(s) on {len(nodes)} node(s): {where}; backend {talk}", flush=True)
    print(
        json.dumps({"record": "sum", "world_size": len(records), "nodes": nodes, "first_collective": first_collective}),
        flush=True,
    )


if __name__ == "__main__":
    main()
