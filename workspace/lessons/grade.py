"""Is an exercise done? It runs a file of exercises/ on all ranks, and says what is right and what is not yet.

lessons/follow jobs/lesson.sbatch grade 3
"""

import argparse
import copy
import importlib.util
import os
import socket
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from ranks import environment, rendezvous

COLLECTIVES = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast")
TIMEOUT = 30  # seconds for a message that does not come
STUCK = 10  # seconds for bytes that do not move in a ring of threads


def all_reduce(exercise):
    """[(what, whether it is so on this rank)] for exercises/all_reduce.py."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * rank
    total = sum(torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * each for each in range(ranks))
    found = [mine.clone() for _ in range(3)]
    forbidden = [mock.patch.object(dist, name, side_effect=AssertionError(f"dist.{name}")) for name in COLLECTIVES]
    for each in forbidden:
        each.start()
    try:
        for tensor in found:
            exercise.all_reduce(tensor)
        exercise.all_reduce(single := torch.tensor([rank + 1]))
    finally:
        mock.patch.stopall()
    return [
        ("the sum is in the tensor, on every rank", torch.equal(found[0], total)),
        ("it works when it is called several times", all(torch.equal(each, total) for each in found)),
        ("a tensor of one integer", single.item() == ranks * (ranks + 1) // 2),
    ]


def sampler(exercise):
    """The same for exercises/sampler.py."""
    cases = [(10, 2), (23, 4), (64, 8)]
    found = [
        [[exercise.indices(n, rank, size, epoch) for rank in range(size)] for n, size in cases] for epoch in (0, 1)
    ]
    everywhere = rendezvous.gather(found)
    again = [exercise.indices(n, 0, size, 0) for n, size in cases]
    lengths, doubles, strangers = [], [], []
    for (n, size), ranks in zip(cases, found[0], strict=True):
        together = [index for one in ranks for index in one]
        lengths += [len(one) - n // size for one in ranks]
        doubles.append(len(together) - len(set(together)))
        strangers += set(together) - set(range(n))
    return [
        ("all ranks have the same number of examples, as many as possible", not any(lengths)),
        ("no example twice in an epoch", not any(doubles)),
        ("only indices from 0 to count - 1", not strangers),
        ("the examples are shuffled", found[0][2][0] != sorted(found[0][2][0])),
        ("the order is another one in the next epoch", found[0][2][0] != found[1][2][0]),
        ("a second call returns the same", again == [ranks[0] for ranks in found[0]]),
        ("every rank computes the same shares", all(each == found for each in everywhere)),
    ]


def column_parallel(exercise):
    """The same for exercises/column_parallel.py."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole, x, dy = nn.Linear(5, 4 * ranks), torch.randn(3, 5), torch.randn(3, 4 * ranks)
    mine = exercise.ColumnParallelLinear(copy.deepcopy(whole))
    x_whole, x_mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    y_whole, y_mine = whole(x_whole), mine(x_mine)
    right = y_mine.shape == (3, 4) and torch.allclose(y_mine, y_whole.chunk(ranks, -1)[rank], atol=1e-6)
    checks = [
        ("a rank keeps only its shard of the parameters", sum(each.numel() for each in mine.parameters()) == 4 * 5 + 4),
        ("forward: its columns of the whole layer", right),
    ]
    if not all(rendezvous.gather(right)):
        return checks
    y_whole.backward(dy)
    y_mine.backward(dy.chunk(ranks, -1)[rank])
    gradients = sorted(each.grad.norm().item() for each in mine.parameters() if each.grad is not None)
    expected = sorted(each.grad.chunk(ranks)[rank].norm().item() for each in whole.parameters())
    close = len(gradients) == 2 and torch.allclose(torch.tensor(gradients), torch.tensor(expected), atol=1e-5)
    return [
        *checks,
        ("backward: the gradients of its parameters", close),
        ("backward: the gradient of x, summed over ranks", torch.allclose(x_mine.grad, x_whole.grad, atol=1e-5)),
    ]


def ring(exercise):
    """The same for exercises/ring.py: on each rank a ring of threads, which knows nothing of the job's ranks."""
    checks = []
    for ranks, n in ((2, 10), (3, 7), (4, 1 << 20)):
        given = [torch.arange(n, dtype=torch.float32) + 10 * rank for rank in range(ranks)]
        found, sent = in_a_ring(exercise.all_reduce, given)
        least = sum(part.nbytes for part in given[0].tensor_split(ranks)) * 2 * (ranks - 1)
        right = all(torch.equal(each, sum(given)) for each in found)
        checks.append((f"{ranks} ranks, {n:,} numbers: the sum is in the tensor, on every rank", right))
    return [*checks, ("together they send 2 (R - 1) times the tensor, no more", sum(sent) <= least)]


def layers(exercise):
    """The same for exercises/layers.py. Every rank merges the same layers."""
    hide = exercise.HIDES
    base = {"/bin/sh": "sh", "/data/a": "1", "/data/sub/b": "2", "/database": "3", "/etc/motd": "old"}

    def right(upper, seen):
        """Whether this is seen of `base` below `upper`, and the layers are left as they were."""
        given = [dict(base), dict(upper)]
        return exercise.merged(given) == seen and given == [base, upper]

    def without(*gone):
        return {path: text for path, text in base.items() if path not in gone}

    of_data = ("/data/a", "/data/sub/b")
    opaque = {"/data/new": "4", f"/data/{exercise.HIDES_ALL}": ""}
    hidden, new = {f"/etc/{hide}motd": ""}, {"/etc/motd": "new"}
    return [
        ("one layer", exercise.merged([dict(base)]) == base),
        ("the highest layer's file is seen", right(new, base | new)),
        ("a whiteout hides a file", right(hidden, without("/etc/motd"))),
        ("a whiteout hides /data, but not /database", right({f"/{hide}data": ""}, without(*of_data))),
        ("an opaque folder has its own layer's files", right(opaque, without(*of_data) | {"/data/new": "4"})),
        ("a higher layer can add a hidden file again", exercise.merged([base, hidden, new]) == base | new),
    ]


class CountingSocket(socket.socket):
    """A socket that counts what it sends, and whose waits end."""

    def __init__(self, end):
        super().__init__(fileno=end.detach())
        self.settimeout(STUCK)
        self.sent = 0  # bytes

    def sendall(self, data):
        super().sendall(data)
        self.sent += memoryview(data).nbytes

    def send(self, data):
        count = super().send(data)
        self.sent += count
        return count


def in_a_ring(all_reduce, given):
    """What each rank's tensor is after all_reduce, and the bytes that it has sent. An error of any rank is raised."""
    found, ranks = [tensor.clone() for tensor in given], len(given)
    pairs = [[CountingSocket(end) for end in socket.socketpair()] for _ in given]  # of rank and rank + 1
    with ThreadPoolExecutor(ranks) as threads:
        works = [
            threads.submit(all_reduce, found[rank], rank, ranks, pairs[rank - 1][1], pairs[rank][0])
            for rank in range(ranks)
        ]
    for pair in pairs:
        for end in pair:
            end.close()
    for work in works:
        work.result()
    return found, [right.sent + left.sent for (right, _), (_, left) in zip(pairs, pairs[-1:] + pairs[:-1], strict=True)]


EXERCISES = {"3": all_reduce, "4": sampler, "6": column_parallel, "ring": ring, "containers": layers}


def grade(lesson, folder):
    """[(what, whether it is so on every rank)], the same on every rank. Any error of the exercise is raised."""
    check = EXERCISES[lesson]
    spec = importlib.util.spec_from_file_location(check.__name__, Path(folder) / f"{check.__name__}.py")
    exercise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exercise)
    ranks = rendezvous.gather(check(exercise))
    return [(what, all(each[number][1] for each in ranks)) for number, (what, _) in enumerate(ranks[0])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lesson", choices=EXERCISES)
    parser.add_argument("--folder", default="exercises", help="where the file is that was written")
    options = parser.parse_args()
    try:
        env = environment.read()
        if env.world_size < 2:
            raise ValueError("this check needs two ranks or more")
    except ValueError as error:
        sys.exit(f"grade: error: {error}")
    with rendezvous.process_group(env, "gloo", TIMEOUT):
        rendezvous.gather(env.rank)  # if one fails before another has reached it, that one's error would come last
        try:
            checks = grade(options.lesson, options.folder)
        except Exception:  # whatever a student wrote raises: it is shown, and the exit status is 1
            trace = traceback.format_exc(limit=-1)
            os.write(1, f"rank {env.rank} failed in the exercise\n{trace}".encode())
            os._exit(1)  # the others wait for this one, which srun tells them
        done = sum(right for _, right in checks)
        if env.rank == 0:
            for what, right in checks:
                print(f"{'right  ' if right else 'not yet'}  {what}")
            print(f"lesson {options.lesson}: {done} of {len(checks)}", flush=True)
    sys.exit(done < len(checks))


if __name__ == "__main__":
    main()
