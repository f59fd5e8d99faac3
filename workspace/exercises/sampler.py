"""Exercise of lesson 4: which examples a rank trains on in an epoch.

lessons/follow jobs/lesson.sbatch grade 4
"""

import torch


def indices(count: int, rank: int, world_size: int, epoch: int) -> list[int]:
    """The indices, from 0 to `count` - 1, of this rank's examples in this epoch.

    All ranks have the same number of examples, as many as possible, and no two ranks share an example. Every epoch
    has another order. The same arguments give the same list on every rank: use `torch.Generator().manual_seed(epoch)`.
    """
    raise NotImplementedError(f"no sampler yet: {torch.Generator().manual_seed(epoch)}")
