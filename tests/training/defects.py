"""The classic mistakes of tensor parallelism, to be put into the program by a test and to be found by its checks."""

from torch.nn import functional as F

import none
import tp
import tp_layers
from communication import all_reduce


class Nothing:
    """f left out: the gradient that a rank gets is of its own columns only."""

    apply = staticmethod(lambda x: x)


class ReducesTwice(tp_layers.ReduceFromRanks):
    """g that sums in backward as well: the gradient is R times too large."""

    @staticmethod
    def backward(context, dy):
        return all_reduce(dy, "backward")


def bias_before_reduce(self, x):
    return tp_layers.ReduceFromRanks.apply(F.linear(x, self.weight, self.bias))


# Name -> (where, what, with what it is replaced).
DEFECTS = {
    "f missing": (tp_layers, "CopyToRanks", Nothing),
    "g reduces in backward": (tp_layers, "ReduceFromRanks", ReducesTwice),
    "row bias before the reduce": (tp_layers.RowParallelLinear, "forward", bias_before_reduce),
    "clip by the local norm": (tp, "gradient_norm", none.gradient_norm),
    "padding not masked": (tp_layers, "mask_padding", lambda logits, first, symbols: logits),
}
