"""Exercise of the lesson "your own all-reduce": the ring.

lessons/follow jobs/lesson.sbatch grade ring
"""

import socket

import torch


def all_reduce(tensor: torch.Tensor, rank: int, ranks: int, left: socket.socket, right: socket.socket) -> None:
    """Put the sum of all ranks' tensors into `tensor`, on every rank, for any number of ranks.

    `tensor` is float32, [n], with the same n on every rank. `left` is connected to rank - 1, and `right` to rank + 1;
    rank 0's left is the last rank. Send to the right and receive from the left, 2 (ranks - 1) times, 1/ranks of the
    tensor each time.

    - `tensor.tensor_split(ranks)` gives slices that are views: what is written into a slice is written into `tensor`.
    - `as_bytes(slice)` of ranks/sockets.py gives its memory. `right.sendall` takes it, `left.recv_into` writes into it.
    - `recv_into` returns how many bytes came: perhaps fewer than there is room for, and 0 if the other rank has ended.
    - `sendall` returns once all bytes are on their way. If every rank sends first and then receives, all wait: let a
      thread send meanwhile.
    """
    raise NotImplementedError(f"rank {rank} has no ring yet")
