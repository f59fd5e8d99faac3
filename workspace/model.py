"""A plain GPT. Nothing in here knows of ranks: tp.py cuts it from outside.

Two choices make the cuts simple. The rows of `qkv` are ordered head by head, so that an equal cut of its rows keeps
whole heads; and the number of heads is read off the activations, so that a layer with half the rows has half the heads.
The head is a matrix of its own: tied to the embedding it would be one parameter with two names, to be minded by every
optimiser, checkpoint and cut, to save 1 % of the parameters.

What makes it learn fast: a position starts from its last characters, not from one alone; queries and keys are of one
length (QK-norm), so that attention stays calm at high learning rates; norms have no parameters, which the matrices
behind them can take over.

Legend: B batch, T time, C channels, H heads, D channels of a head (C = H D), V symbols in the vocabulary,
K last characters.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from nanogpt import NanoGPT

RECENT = 4  # K: characters that a position starts from, its own and those before
SHARPNESS = 0.35  # of attention: what q k is multiplied with; both are of length sqrt(D), so twice 1/sqrt(D) at D = 32


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_channels = config.channels // config.heads
        self.qkv = nn.Linear(config.channels, 3 * config.channels)
        self.projection = nn.Linear(config.channels, config.channels)
        self.register_buffer("angles", rotary_angles(config.block_size, self.head_channels), persistent=False)

    def forward(self, x):
        B, T, _ = x.shape
        qkv = self.qkv(x)  # [B, T, H 3 D]
        qkv = qkv.view(B, T, qkv.shape[-1] // (3 * self.head_channels), 3, self.head_channels)  # [B, T, H, 3, D]
        qkv = qkv.permute(3, 0, 2, 1, 4)  # [3, B, H, T, D]
        q, k = rotate(F.layer_norm(qkv[:2], (self.head_channels,)), self.angles[:T])  # 2 of [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, qkv[2], is_causal=True, scale=SHARPNESS)  # [B, H, T, D]
        return self.projection(y.transpose(1, 2).flatten(2))  # [B, T, H D] -> [B, T, C]


def rotary_angles(positions, head_channels):
    """Angle of each position and pair of channels, [T, D/2]: from 1 radian for each character to 1/1,000."""
    frequencies = 1000.0 ** -torch.linspace(0, 1, head_channels // 2)
    return torch.outer(torch.arange(positions), frequencies)


def rotate(x, angles):
    """Turn each pair of channels by its position's angle, [..., T, D]: query times key then depends on their distance.

    Source: Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864.
    """
    turns = torch.polar(torch.ones_like(angles), angles)  # [T, D/2], complex: one product instead of six operations
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # [..., T, D/2]
    return torch.view_as_real(pairs * turns).flatten(-2)  # [..., T, D/2, 2] -> [..., T, D]


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.channels, 4 * config.channels)
        self.down = nn.Linear(4 * config.channels, config.channels)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))  # [B, T, C] -> [B, T, 4 C] -> [B, T, C]


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.channels, elementwise_affine=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.channels, elementwise_affine=False)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class RecentEmbedding(nn.Embedding):
    """The sum of the vectors of the last characters: rows [B, T, K] of `recent` to [B, T, C]."""

    def forward(self, rows):
        return super().forward(rows).sum(-2)


def recent(tokens, symbols):
    """Tokens [B, T] as rows of RecentEmbedding [B, T, K]: k V + the symbol k characters back.

    Before the first character stands symbol 0.
    """
    T = tokens.shape[1]
    return torch.stack([F.pad(tokens, (k, 0))[:, :T] + k * symbols for k in range(RECENT)], dim=-1)


class GPT(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config, symbols):
        super().__init__()
        self.block_size = config.block_size
        self.symbols = symbols
        self.token_embedding = RecentEmbedding(RECENT * symbols, config.channels)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels, elementwise_affine=False)
        self.head = nn.Linear(config.channels, symbols, bias=False)
        self.initialise(config)

    def initialise(self, config):
        """Keep the size of activations at any width; what adds up in the residual stream starts smaller."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(("projection.weight", "down.weight")):
                nn.init.normal_(parameter, std=1 / math.sqrt(2 * config.layers * parameter.shape[1]))
            elif name.endswith(("qkv.weight", "up.weight")):
                nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[1]))
        nn.init.normal_(self.token_embedding.weight, std=0.25)
        nn.init.normal_(self.token_embedding.weight[: self.symbols], std=0.5)  # the character itself says most
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens):
        x = self.token_embedding(recent(tokens, self.symbols))  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [B, T, V]


def build(config, symbols):
    """The model of a configuration: equal seeds give equal weights, on every rank."""
    torch.manual_seed(config.seed)
    kind = NanoGPT if config.model == "nanogpt" else GPT
    return kind(config, symbols).to(getattr(torch, config.dtype))


@torch.no_grad()
def generate(model, tokens, length, seed):
    """`tokens`, a list, and `length` more, each drawn from the model's distribution for the one after."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        context = torch.tensor([tokens[-model.block_size :]])  # [1, T]
        probabilities = model(context)[0, -1].softmax(dim=0)  # [V]
        tokens = [*tokens, torch.multinomial(probabilities, 1, generator=generator).item()]
    return tokens
