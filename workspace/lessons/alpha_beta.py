"""What an all-reduce costs: predicted from two numbers of the network, alpha and beta, and measured.

lessons/follow jobs/lesson.sbatch alpha_beta
lessons/follow jobs/lesson.sbatch alpha_beta --pieces 128

alpha is the time that every message takes, beta the time of one more byte. In a ring of R ranks each sends 2(R - 1)
messages of 1/R of the tensor: R - 1 until each rank has one part of the sum, R - 1 until all have all of it.
Source: Thakur, Rabenseifner, Gropp 2005, https://doi.org/10.1177/1094342005051521
"""

import argparse
import statistics
import sys
import time

import torch
import torch.distributed as dist

from ranks import environment, rendezvous

SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22]  # bytes
REPEATS = 9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pieces", type=int, default=1, help="sum the largest tensor in so many pieces")
    options = parser.parse_args()
    try:
        env = environment.read()
        if env.world_size < 2:
            raise ValueError("one rank has nobody to send to")
    except ValueError as error:
        sys.exit(f"alpha_beta: error: {error}")
    with rendezvous.process_group(env, "gloo", 120):
        alpha = message_time(env.rank, 8)
        beta = max(message_time(env.rank, SIZES[-1]) - alpha, 1e-6) / SIZES[-1]
        alpha, beta = agreed(alpha), agreed(beta)  # rank 0's
        say(env, f"alpha  {alpha * 1e3:.3f} ms a message")
        say(env, f"beta   {beta * 1e9:.3f} ns a byte, which is {1e-9 / beta:.2f} GB/s")
        say(env, f"{'bytes':>10}  {'pieces':>6}  {'predicted':>12}  {'measured':>12}")
        for size, pieces in [(size, 1) for size in SIZES] + [(SIZES[-1], options.pieces)] * (options.pieces > 1):
            guess = pieces * ring(size / pieces, env.world_size, alpha, beta)
            found = all_reduce_time(size, pieces)
            say(env, f"{size:10,}  {pieces:6}  {guess * 1e3:9.3f} ms  {found * 1e3:9.3f} ms")


def ring(size, ranks, alpha, beta):
    """Seconds of a ring all-reduce of so many bytes."""
    return 2 * (ranks - 1) * (alpha + size / ranks * beta)


def message_time(rank, size):
    """Seconds from rank 0 to rank 1: half of the way there and back."""
    data = torch.ones(size, dtype=torch.uint8)

    def there_and_back():
        if rank == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
        elif rank == 1:
            dist.recv(data, 0)
            dist.send(data, 0)

    return median_seconds(there_and_back) / 2


def all_reduce_time(size, pieces):
    parts = torch.ones(size // 4).chunk(pieces)

    def all_parts():
        for part in parts:
            dist.all_reduce(part)

    return median_seconds(all_parts)


def median_seconds(function):
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def agreed(seconds):
    tensor = torch.tensor(seconds, dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return tensor.item()


def say(env, line):
    if env.rank == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
