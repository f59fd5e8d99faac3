"""Exercise of lesson 6: a linear layer whose output columns are divided among the ranks.

lessons/follow jobs/lesson.sbatch grade 6
"""

import torch
from torch import nn


class ColumnParallelLinear(nn.Module):
    """This rank's part of the layer `whole`, which is the same on all ranks. The ranks divide its outputs, in order.

    forward:  x [B, in], the same on all ranks -> this rank's columns of whole(x), [B, out / R]
    backward: every rank gets the gradient of x of the whole layer, by the function f, an all-reduce
    """

    def __init__(self, whole: nn.Linear):
        super().__init__()
        raise NotImplementedError("no layer yet")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no forward yet")
