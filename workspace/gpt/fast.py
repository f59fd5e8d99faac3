"""The model of --recipe fast, which learns sooner than the plain one of model.py, and communicates half as often.

A block computes attention and MLP beside each other, from one norm, into one sum: with one matrix before and one
behind them a cut block communicates twice, forward once and backward once. Source: GPT-J's and PaLM's parallel layers,
Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, section 2.

Rows of the matrix before, and columns of the one behind, are ordered head by head, each head with its share of the
MLP, so that an equal cut keeps whole heads.

What makes it learn fast: a position starts from its last characters, not from one alone; queries and keys are of one
length (QK-norm), so that attention stays calm at high learning rates; positions are turns of both (rotary); norms have
no parameters, which the matrices behind them can take over; Muon (muon.py) steps the matrices of the blocks.

Legend: B batch, T time, C channels, H heads, D channels of a head (C = H D), V symbols in the vocabulary,
K last characters.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

RECENT = 4  # K: characters that a position starts from, its own and those before
SHARPNESS = 0.35  # of attention: what q k is multiplied with; both are of length sqrt(D), so twice 1/sqrt(D) at D = 32


class Block(nn.Module):
    """[B, T, C] to [B, T, C]: each head has D channels of q, k, v and 4 D of the MLP."""

    def __init__(self, config):
        super().__init__()
        self.head_channels = config.channels // config.heads
        self.norm = nn.LayerNorm(config.channels, elementwise_affine=False)
        self.inward = nn.Linear(config.channels, 7 * config.channels)
        self.outward = nn.Linear(5 * config.channels, config.channels)
        self.register_buffer("angles", rotary_angles(config.block_size, self.head_channels), persistent=False)

    def forward(self, x):
        return x + self.outward(torch.cat(self.inside(x), dim=-1).flatten(2))  # [B, T, H, 5 D] -> [B, T, C]

    def inside(self, x):
        """Attention [B, T, H, D], and beside it the MLP's channels [B, T, H, 4 D]."""
        B, T, _ = x.shape
        D = self.head_channels
        heads = self.inward(self.norm(x)).unflatten(-1, (-1, 7 * D))  # [B, T, H, 7 D]
        q_and_k, v, mlp = heads.split((2 * D, D, 4 * D), dim=-1)
        q_and_k = q_and_k.view(B, T, heads.shape[2], 2, D).permute(3, 0, 2, 1, 4)  # [2, B, H, T, D]
        q, k = rotate(same_length(q_and_k), self.angles[:T])  # 2 of [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, scale=SHARPNESS)  # [B, H, T, D]
        return y.transpose(1, 2), F.gelu(mlp, approximate="tanh")


def same_length(x):
    """QK-norm: each vector [..., D] without its mean, and of length sqrt(D).

    Source: Henry et al. 2020, https://arxiv.org/abs/2010.04245, with LayerNorm as in Dehghani et al. 2023,
    https://arxiv.org/abs/2302.05442.
    """
    return F.layer_norm(x, x.shape[-1:])


def rotary_angles(positions, head_channels):
    """Angle of each position and pair of channels, [T, D/2]: from 1 radian for each character to 1/1,000."""
    frequencies = 1000.0 ** -torch.linspace(0, 1, head_channels // 2, device="cpu")  # also where shapes alone are made
    return torch.outer(torch.arange(positions, device="cpu"), frequencies)


def rotate(x, angles):
    """Turn each pair of channels by its position's angle, [..., T, D]: query times key then depends on their distance.

    Source: Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864.
    """
    turns = torch.polar(torch.ones_like(angles), angles)  # [T, D/2], complex: one product instead of six operations
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # [..., T, D/2]
    return torch.view_as_real(pairs * turns).flatten(-2)  # [..., T, D/2, 2] -> [..., T, D]


class Recent(nn.Module):
    """Tokens [B, T] as rows of SumEmbedding [B, T, K]: k V + the symbol k characters back.

    Before the first character stands symbol 0.
    """

    def __init__(self, symbols):
        super().__init__()
        self.symbols = symbols

    def forward(self, tokens):
        T = tokens.shape[1]
        return torch.stack([F.pad(tokens, (k, 0))[:, :T] + k * self.symbols for k in range(RECENT)], dim=-1)


class SumEmbedding(nn.Embedding):
    """The sum of the vectors of several rows, [B, T, K] to [B, T, C]."""

    def forward(self, rows):
        return super().forward(rows).sum(-2)


class Embedding(nn.Module):
    """Tokens [B, T] to x [B, T, C]."""

    def __init__(self, config, symbols):
        super().__init__()
        self.recent = Recent(symbols)
        self.token = SumEmbedding(RECENT * symbols, config.channels)

    def forward(self, tokens):
        return self.token(self.recent(tokens))


class FastGPT(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config, symbols):
        super().__init__()
        self.block_size = config.block_size
        self.embedding = Embedding(config, symbols)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels, elementwise_affine=False)
        self.head = nn.Linear(config.channels, symbols, bias=False)

    @torch.no_grad()
    def initialise(self, name, layer):
        """Keep the size of activations at any width; what adds up in the residual stream starts smaller."""
        if name.endswith("outward"):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(len(self.blocks) * layer.in_features))
            nn.init.zeros_(layer.bias)
        elif name.endswith("inward"):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
            nn.init.zeros_(layer.bias)
        elif name == "embedding.token":
            nn.init.normal_(layer.weight, std=0.25)
            nn.init.normal_(layer.weight[: self.head.out_features], std=0.5)  # the character itself says most
        elif name == "head":
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [B, T, V]
