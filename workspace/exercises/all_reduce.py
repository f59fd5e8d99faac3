"""Exercise of lesson 3: an all-reduce with nothing but sends and receives.

lessons/follow jobs/lesson.sbatch grade 3
"""

import torch
import torch.distributed as dist


def all_reduce(tensor: torch.Tensor) -> None:
    """Put the sum of all ranks' tensors into `tensor`, on every rank, for any number of ranks.

    Use `dist.get_rank`, `dist.get_world_size`, `dist.send(tensor, rank)` and `dist.recv(tensor, rank)`, no collective.
    """
    raise NotImplementedError(f"rank {dist.get_rank()} has no all_reduce yet")
