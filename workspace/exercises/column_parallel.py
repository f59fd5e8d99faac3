"""Exercise of lesson 6: a linear layer of which each rank has some of the output columns.

lessons/follow jobs/lesson.sbatch grade 6
"""

import torch
from torch import nn


class ColumnParallelLinear(nn.Module):
    """This rank's part of the layer `whole`, which is the same on all ranks. The ranks divide its outputs, in order.

    forward:  x [B, in], the same on all ranks -> this rank's columns of whole(x), [B, out / R]
    backward: the gradient of x is that of the whole layer, on every rank: the function f, with an all-reduce
    """

    def __init__(self, whole: nn.Linear):
        super().__init__()
        raise NotImplementedError("no layer yet")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no forward yet")
