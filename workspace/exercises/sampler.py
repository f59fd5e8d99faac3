"""Exercise of lesson 4: which examples a rank trains on in an epoch.

lessons/follow jobs/lesson.sbatch grade 4
"""

import torch


def indices(count: int, rank: int, world_size: int, epoch: int) -> list[int]:
    """The numbers, from 0 to `count` - 1, of the examples of this rank in this epoch.

    All ranks have the same number of examples, as many as possible, and none has an example of another's. Every epoch
    has another order. Called twice, on whatever rank, it returns the same: use `torch.Generator().manual_seed(epoch)`.
    """
    raise NotImplementedError(f"no sampler yet: {torch.Generator().manual_seed(epoch)}")
