"""Layers cut over ranks, after Megatron-LM (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3).

A column-parallel layer, then a row-parallel one, make a pair that communicates twice: *f* before it, *g* behind it.

    x --f-- column (heads, MLP columns) -- row --g-- + bias
        forward:  f does nothing, g sums        backward: f sums, g does nothing

Each layer is made from the whole one that it replaces, keeps the names of its parameters, and says in `places` which
part of each is here: (dimension, start, stop, size). A parameter that is not there is replicated: whole and equal on
every rank. `group` are the ranks that share the layer; None is all of them.

Legend: R ranks, N any leading shape (batch, time), I and O channels in and out of the whole layer, V symbols,
C channels, K rows of a sum.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ranks.communication import all_reduce


class CopyToRanks(torch.autograd.Function):
    """f: [N, I] -> [N, I], both whole on every rank.

    Forward: y = x, nothing is sent. Backward: dx = sum over ranks of dy, since each rank used x for its own columns.
    Source: Megatron-LM, `_CopyToModelParallelRegion`.
    """

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, dy):
        return all_reduce(dy, "backward", group=context.group, rounded=True), None


class ReduceFromRanks(torch.autograd.Function):
    """g: [N, O] -> [N, O]; a partial sum on every rank becomes the whole, equal on every rank.

    Forward: y = sum over ranks of x. Backward: dx = dy, nothing is sent: dy is whole on every rank already.
    Source: Megatron-LM, `_ReduceFromModelParallelRegion`.
    """

    @staticmethod
    def forward(context, x, group):
        return all_reduce(x, "forward", group=group, rounded=True)

    @staticmethod
    def backward(context, dy):
        return dy, None


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b with the O rows of W, which are the columns of W^T, cut over ranks.

    Weight [O/R, I], bias [O/R]. Forward: [N, I], whole, -> [N, O/R], a slice; nothing is sent. Backward: one all-reduce
    of [N, I]: a single f serves all rows, those of q, k and v too.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        assert whole.out_features % dist.get_world_size(group) == 0, (whole.out_features, dist.get_world_size(group))
        self.group = group
        self.weight, place = cut(whole.weight, 0, group)
        self.bias, _ = cut(whole.bias, 0, group)
        self.places = {"weight": place, "bias": place}

    def forward(self, x):
        return F.linear(CopyToRanks.apply(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T + b with the I columns of W cut over ranks, as x is.

    Weight [O, I/R], bias [O], replicated. Forward: [N, I/R], a slice, -> [N, O], whole; one all-reduce of [N, O].
    Backward: nothing is sent. The bias is added after the sum, else it would count R times.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        assert whole.in_features % dist.get_world_size(group) == 0, (whole.in_features, dist.get_world_size(group))
        self.group = group
        self.weight, place = cut(whole.weight, 1, group)
        self.bias = nn.Parameter(whole.bias.detach().clone())
        self.places = {"weight": place}

    def forward(self, x):
        return ReduceFromRanks.apply(F.linear(x, self.weight), self.group) + self.bias


class VocabParallelEmbedding(nn.Module):
    """Rows of the embedding cut over ranks; a rank looks up the rows that it has and gives zero for the others.

    Weight [ceil(V/R), C]. Forward: tokens [N] -> [N, C], whole; one all-reduce of [N, C]. Backward: nothing is sent.
    Source: Megatron-LM, `VocabParallelEmbedding`.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        self.weight, place = cut(whole.weight, 0, group)
        self.first, self.places = place[1], {"weight": place}

    def forward(self, tokens):
        return ReduceFromRanks.apply(self.found(tokens), self.group)

    def found(self, rows):
        """What this rank has of them, [N, C]: of rows [N] the vectors that are here, else zero."""
        return look_up(rows, self.weight, self.first)


class VocabParallelSumEmbedding(VocabParallelEmbedding):
    """The same for the SumEmbedding of fast.py: rows [N, K] -> their sum [N, C], taken before the all-reduce."""

    def found(self, rows):
        return super().found(rows).sum(-2)  # [N, K, C] -> [N, C]


class VocabParallelHead(nn.Module):
    """The last layer, column-parallel in the vocabulary, without a bias; V need not divide by R.

    Weight [ceil(V/R), C]. Forward: [N, C], whole, -> logits [N, ceil(V/R)], a slice, -inf where there is no symbol;
    nothing is sent. Backward: one all-reduce of [N, C].
    """

    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        self.weight, place = cut(whole.weight, 0, group)
        self.first, self.symbols, self.places = place[1], whole.out_features, {"weight": place}

    def forward(self, x):
        return mask_padding(F.linear(CopyToRanks.apply(x, self.group), self.weight), self.first, self.symbols)


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
    def forward(context, logits, targets, first, group):
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # from bf16, where --amp says so
        greatest = all_reduce(logits.amax(-1), "forward", dist.ReduceOp.MAX, group)
        shifted = logits - greatest.unsqueeze(-1)
        local, elsewhere = own_rows(targets, first, logits.shape[-1])
        at_target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0)  # [N]
        at_target = all_reduce(at_target, "forward", group=group)
        exponentials = shifted.exp()
        total = all_reduce(exponentials.sum(-1), "forward", group=group)
        context.save_for_backward(exponentials / total.unsqueeze(-1), local, elsewhere)
        return total.log() - at_target

    @staticmethod
    def backward(context, dlosses):
        softmax, local, elsewhere = context.saved_tensors
        here = (~elsewhere).to(softmax.dtype).unsqueeze(-1)  # [N, 1]
        return softmax.scatter_add(-1, local.unsqueeze(-1), -here) * dlosses.unsqueeze(-1), None, None, None


def own_rows(tokens, first, count):
    """Tokens as rows of the slice that starts at `first`, and where they are on another rank (there the row is 0)."""
    elsewhere = (tokens < first) | (tokens >= first + count)
    return (tokens - first).masked_fill(elsewhere, 0), elsewhere


def look_up(rows, weight, first):
    """Of rows [N] of an embedding, of which those from `first` are here, the vectors [N, C]; 0 where they are not."""
    local, elsewhere = own_rows(rows, first, len(weight))
    return F.embedding(local, weight).masked_fill(elsewhere.unsqueeze(-1), 0)


def cut(whole, dimension, group):
    """This rank's slice of a tensor, as a parameter, and its place: (dimension, start, stop, size).

    All slices have one shape: zeros fill up what the ranks do not divide, and have no place. Of a meta tensor, which
    has a shape and no values, the slice is one too: sharding.fill gives it memory and its values later.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    size = whole.shape[dimension]
    filled = whole.detach().new_zeros(*whole.shape[:dimension], -size % world_size, *whole.shape[dimension + 1 :])
    mine = torch.cat((whole.detach(), filled), dimension).chunk(world_size, dimension)[rank].clone()
    length = mine.shape[dimension]
    return nn.Parameter(mine), (dimension, min(rank * length, size), min((rank + 1) * length, size), size)
