"""Layers cut over ranks, after Megatron-LM (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3).

A column-parallel layer, then a row-parallel one, make a pair that communicates twice: *f* before it, *g* behind it.

    x --f-- column (heads, MLP columns) -- row --g-- + bias
        forward:  f does nothing, g sums        backward: f sums, g does nothing

Each layer is made from the whole one that it replaces, keeps the names of its parameters, and says in `cuts` which
dimension of each is cut; a parameter that is not in `cuts` is replicated: whole and equal on every rank.

Legend: R ranks, N any leading shape (batch, time), I and O channels in and out of the whole layer, V symbols,
C channels.
"""

from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from communication import all_reduce


class CopyToRanks(torch.autograd.Function):
    """f: [N, I] -> [N, I], both whole on every rank.

    Forward: y = x, nothing is sent. Backward: dx = sum over ranks of dy, since each rank used x for its own columns.
    Source: Megatron-LM, `_CopyToModelParallelRegion`.
    """

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, dy):
        return all_reduce(dy, "backward")


class ReduceFromRanks(torch.autograd.Function):
    """g: [N, O] -> [N, O]; a partial sum on every rank becomes the whole, equal on every rank.

    Forward: y = sum over ranks of x. Backward: dx = dy, nothing is sent: dy is whole on every rank already.
    Source: Megatron-LM, `_ReduceFromModelParallelRegion`.
    """

    @staticmethod
    def forward(context, x):
        return all_reduce(x, "forward")

    @staticmethod
    def backward(context, dy):
        return dy


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b with the O rows of W, which are the columns of W^T, cut over ranks.

    Weight [O/R, I], bias [O/R]. Forward: [N, I], whole, -> [N, O/R], a slice; nothing is sent. Backward: one all-reduce
    of [N, I]: a single f serves all rows, those of q, k and v too.
    """

    cuts: ClassVar = {"weight": 0, "bias": 0}

    def __init__(self, whole, rank, world_size):
        super().__init__()
        assert whole.out_features % world_size == 0, (whole.out_features, world_size)
        self.weight = nn.Parameter(cut(whole.weight, 0, rank, world_size))
        self.bias = nn.Parameter(cut(whole.bias, 0, rank, world_size))

    def forward(self, x):
        return F.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T + b with the I columns of W cut over ranks, as x is.

    Weight [O, I/R], bias [O], replicated. Forward: [N, I/R], a slice, -> [N, O], whole; one all-reduce of [N, O].
    Backward: nothing is sent. The bias is added after the sum, else it would count R times.
    """

    cuts: ClassVar = {"weight": 1}

    def __init__(self, whole, rank, world_size):
        super().__init__()
        assert whole.in_features % world_size == 0, (whole.in_features, world_size)
        self.weight = nn.Parameter(cut(whole.weight, 1, rank, world_size))
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        return ReduceFromRanks.apply(F.linear(x, self.weight)) + self.bias


class VocabParallelEmbedding(nn.Module):
    """Rows of the embedding cut over ranks; a rank looks up the tokens that it has and gives zero for the others.

    Weight [ceil(V/R), C]. Forward: tokens [N] -> [N, C], whole; one all-reduce of [N, C]. Backward: nothing is sent.
    Source: Megatron-LM, `VocabParallelEmbedding`.
    """

    cuts: ClassVar = {"weight": 0}

    def __init__(self, whole, rank, world_size):
        super().__init__()
        self.weight = nn.Parameter(cut(whole.weight, 0, rank, world_size))
        self.first, self.symbols = rank * len(self.weight), whole.num_embeddings

    def forward(self, tokens):
        local, elsewhere = to_local(tokens, self.first, len(self.weight))
        found = F.embedding(local, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)  # [N, C]
        return ReduceFromRanks.apply(found)


class VocabParallelHead(nn.Module):
    """The last layer, column-parallel in the vocabulary, without a bias; V need not divide by R.

    Weight [ceil(V/R), C]. Forward: [N, C], whole, -> logits [N, ceil(V/R)], a slice, -inf where there is no symbol;
    nothing is sent. Backward: one all-reduce of [N, C].
    """

    cuts: ClassVar = {"weight": 0}

    def __init__(self, whole, rank, world_size):
        super().__init__()
        self.weight = nn.Parameter(cut(whole.weight, 0, rank, world_size))
        self.first, self.symbols = rank * len(self.weight), whole.out_features

    def forward(self, x):
        return mask_padding(F.linear(CopyToRanks.apply(x), self.weight), self.first, self.symbols)


def mask_padding(logits, first, symbols):
    """Logits [N, ceil(V/R)] of the rows from `first`, with -inf, so no probability, for rows that only fill up."""
    padding = torch.arange(first, first + logits.shape[-1], device=logits.device) >= symbols
    return logits.masked_fill(padding, float("-inf")) if padding.any() else logits


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of each token, from logits that no rank has whole.

    Logits [N, ceil(V/R)], a slice, and targets [N], whole, -> losses [N], whole.
    Forward: log(sum exp(z - m)) - (z_target - m) with m the greatest logit: three all-reduces of [N], for m, z_target
    and the sum. Backward: dz = (softmax(z) - onehot(target)) dloss on the slice; nothing is sent.
    Source: Megatron-LM, `_VocabParallelCrossEntropy`.
    """

    @staticmethod
    def forward(context, logits, targets, first):
        greatest = all_reduce(logits.amax(-1), "forward", dist.ReduceOp.MAX)
        shifted = logits - greatest.unsqueeze(-1)
        local, elsewhere = to_local(targets, first, logits.shape[-1])
        at_target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0)  # [N]
        at_target = all_reduce(at_target, "forward")
        exponentials = shifted.exp()
        total = all_reduce(exponentials.sum(-1), "forward")
        context.save_for_backward(exponentials / total.unsqueeze(-1), local, elsewhere)
        return total.log() - at_target

    @staticmethod
    def backward(context, dlosses):
        softmax, local, elsewhere = context.saved_tensors
        here = (~elsewhere).to(softmax.dtype).unsqueeze(-1)  # [N, 1]
        return softmax.scatter_add(-1, local.unsqueeze(-1), -here) * dlosses.unsqueeze(-1), None, None


def to_local(tokens, first, count):
    """Tokens as rows of the slice that starts at `first`, and where they are on another rank (there the row is 0)."""
    elsewhere = (tokens < first) | (tokens >= first + count)
    return (tokens - first).masked_fill(elsewhere, 0), elsewhere


def cut(whole, dimension, rank, world_size):
    """The rank's slice of a tensor, after filling it up with zeros to a multiple of the world size."""
    size = whole.shape[dimension]
    filled = whole.detach().new_zeros(*whole.shape[:dimension], -size % world_size, *whole.shape[dimension + 1 :])
    return torch.cat((whole.detach(), filled), dimension).chunk(world_size, dimension)[rank].clone()


def join(slices, dimension, size):
    """The whole tensor from the slices of all ranks, without what `cut` filled up. The inverse of `cut`."""
    return torch.cat(slices, dimension).narrow(dimension, 0, size)
