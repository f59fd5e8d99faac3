"""An all-reduce over sockets, in three ways beside gloo: what each rank sends, and how long that takes.

lessons/follow --ntasks-per-node=2 jobs/lesson.sbatch ring
lessons/follow jobs/lesson.sbatch ring --stranger
lessons/follow jobs/lesson.sbatch ring --stranger --no-token
lessons/follow jobs/lesson.sbatch ring --kill 1

ranks/sockets.py connects the ranks. Source of the ring: Patarasuk and Yuan 2009,
https://doi.org/10.1016/j.jpdc.2008.09.002
"""

import argparse
import os
import socket
import sys
import time
from unittest import mock

import torch
import torch.distributed as dist

from ranks import environment, rendezvous, sockets
from ranks.sockets import Peers, as_bytes

SIZES = [1 << 10, 1 << 22]  # bytes
REPEATS, TIMEOUT = 7, 60  # times; seconds
LIE = 1000.0  # what the stranger sends, as if it were rank 1's number


class CountingPeers(Peers):
    """Connections that count what this rank sends."""

    sent = 0  # bytes

    def send(self, to_send, peer):
        count = super().send(to_send, peer)
        self.sent += count
        return count


def gather_to_one(peers, tensor):
    """The sum of the ranks' tensors, [n], on each rank: rank 0 takes them all, adds, and sends the sum to all."""
    if peers.rank > 0:
        total = torch.empty_like(tensor)
        peers.move({0: as_bytes(tensor)}, {})
        peers.move({}, {0: as_bytes(total)})
        return total
    given = {peer: torch.empty_like(tensor) for peer in peers.sockets}
    peers.move({}, {peer: as_bytes(each) for peer, each in given.items()})
    total = tensor + sum(given.values())
    peers.move({peer: as_bytes(total) for peer in given}, {})
    return total


def ring(peers, tensor):
    """The same sum; each rank talks to its neighbours alone, and sends 2 (R - 1) times 1/R of the tensor."""
    rank, ranks = peers.rank, peers.size
    total = tensor.clone()
    slices = total.tensor_split(ranks)  # views: what is written into a slice is written into `total`
    for turn in range(2 * (ranks - 1)):
        outgoing, incoming = slices[(rank - turn) % ranks], slices[(rank - turn - 1) % ranks]
        arrived = torch.empty_like(incoming)
        peers.move({(rank + 1) % ranks: as_bytes(outgoing)}, {(rank - 1) % ranks: as_bytes(arrived)})
        incoming.copy_(incoming + arrived if turn < ranks - 1 else arrived)
    return total


def all_at_once(peers, tensor):
    """The same sum by ranks/sockets.py: each rank talks to all others at the same time."""
    return peers.all_reduce(tensor, dist.ReduceOp.SUM, tensor.dtype)


def gloo(_, tensor):
    dist.all_reduce(total := tensor.clone())
    return total


WAYS = {"gather to rank 0": gather_to_one, "ring": ring, "ranks/sockets.py": all_at_once, "gloo": gloo}


def compare(env):
    """Print a table for each size: a row for each way, with its time and the bytes that each rank sends."""
    peers = CountingPeers(dist.group.WORLD, TIMEOUT)
    for size in SIZES:
        mine = torch.full((size // 4,), env.rank + 1.0)
        heads = "".join(f"rank {rank}".rjust(13) for rank in range(peers.size))
        say(env, f"{f'{size:,} bytes':18}{'ms':>9}{heads}")
        for name, way in WAYS.items():
            peers.sent = 0
            total = way(peers, mine)
            sent = rendezvous.gather(peers.sent)
            assert torch.equal(total, torch.full_like(mine, peers.size * (peers.size + 1) / 2)), name
            columns = ("-" if way is gloo else f"{count:,}" for count in sent)
            milliseconds = least_seconds(way, peers, mine) * 1000
            say(env, f"{name:18}{milliseconds:9.3f}" + "".join(column.rjust(13) for column in columns))
    say(env, "all give the same sum")


def least_seconds(way, peers, tensor):
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        way(peers, tensor)
        times.append(time.perf_counter() - start)
    return min(times)


class Visited(Peers):
    """Connections of ranks; before rank 1 calls rank 0, somebody else calls there, and says that he is rank 1."""

    stranger = None

    def call(self, peer, address, port, token):
        self.stranger = socket.create_connection((address, port), TIMEOUT)
        say_who = self.rank.to_bytes(sockets.RANK, "big") + bytes(sockets.TOKEN)  # a guess: all zeros
        self.stranger.sendall(say_who + bytes(as_bytes(torch.tensor([LIE]))))
        print(f"a stranger calls rank {peer}, says that he is rank {self.rank}, and sends {LIE:.0f}", flush=True)
        return super().call(peer, address, port, token)


def visit(env, no_token):
    """Rank r has the number r + 1. Print what each rank takes for the sum, and what became of the stranger."""
    if no_token:  # as if there were none: everyone knows it
        mock.patch.object(sockets.secrets, "token_bytes", bytes).start()
    try:
        peers = Visited(dist.group.WORLD, TIMEOUT)
        total = peers.all_reduce(torch.tensor([env.rank + 1.0]), dist.ReduceOp.SUM, torch.float32)
        print(f"rank {env.rank} has the sum {total.item():.0f}", flush=True)
        if peers.stranger:
            print("the stranger was sent away" if has_ended(peers.stranger) else "the stranger is still there")
    except RuntimeError as error:
        print(f"no sum: {error}", flush=True)


def has_ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def lose(env, killed):
    """Rank `killed` ends after two sums. Print what the others find."""
    peers = Peers(dist.group.WORLD, TIMEOUT)
    for number in range(1, 4):
        if number == 3 and env.rank == killed:
            os.write(1, f"rank {env.rank} ends, without a word\n".encode())
            os._exit(0)
        try:
            total = peers.all_reduce(torch.tensor([env.rank + 1.0]), dist.ReduceOp.SUM, torch.float32)
            say(env, f"sum {number}: {total.item():.0f}")
        except RuntimeError as error:
            os.write(1, f"sum {number}: {error}\n".encode())
            os._exit(1)  # no leave-taking: gloo too misses the rank


def say(env, line):
    if env.rank == 0:
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stranger", action="store_true", help="somebody calls rank 0, and says that he is rank 1")
    parser.add_argument("--no-token", action="store_true", help="a rank is taken at its word")
    parser.add_argument("--kill", type=int, help="a rank that ends after two sums")
    options = parser.parse_args()
    try:
        env = environment.read()
        if env.world_size < 2:
            raise ValueError("one rank has nobody to talk to")
        if options.stranger and env.world_size > 2:
            raise ValueError("the stranger calls rank 0, for rank 1: take two ranks")
    except ValueError as error:
        sys.exit(f"ring: error: {error}")
    with rendezvous.process_group(env, "gloo", TIMEOUT):
        if options.stranger:
            visit(env, options.no_token)
        elif options.kill is not None:
            lose(env, options.kill)
        else:
            compare(env)


if __name__ == "__main__":
    main()
