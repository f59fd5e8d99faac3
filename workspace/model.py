"""A plain GPT. Nothing in here knows of ranks: tp.py cuts it from outside.

Two choices make the cuts simple. The rows of `qkv` are ordered head by head, so that an equal cut of its rows keeps
whole heads; and the number of heads is read off the activations, so that a layer with half the rows has half the heads.
The head is a matrix of its own: tied to the embedding it would be one parameter with two names, to be minded by every
optimiser, checkpoint and cut, to save 1 % of the parameters.

Legend: B batch, T time, C channels, H heads, D channels of a head (C = H D), V symbols in the vocabulary.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


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
        q, k, v = qkv.permute(3, 0, 2, 1, 4)  # 3 of [B, H, T, D]
        q, k = rotate(q, self.angles[:T]), rotate(k, self.angles[:T])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D]
        return self.projection(y.transpose(1, 2).flatten(2))  # [B, T, H D] -> [B, T, C]


def rotary_angles(positions, head_channels):
    """Angle of each position and pair of channels, [T, D/2]: from 1 radian for each character to 1/1,000."""
    frequencies = 1000.0 ** -torch.linspace(0, 1, head_channels // 2)
    return torch.outer(torch.arange(positions), frequencies)


def rotate(x, angles):
    """Turn each pair of channels by its position's angle, [B, H, T, D]: query times key then depends on their distance.

    Source: Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864.
    """
    cos, sin = angles.cos(), angles.sin()  # [T, D/2]
    first, second = x.chunk(2, dim=-1)  # [B, H, T, D/2]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


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
        self.attention_norm = nn.LayerNorm(config.channels)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.channels)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config, symbols):
        super().__init__()
        self.block_size = config.block_size
        self.token_embedding = nn.Embedding(symbols, config.channels)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels)
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
        nn.init.normal_(self.token_embedding.weight, std=0.5)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens):
        x = self.token_embedding(tokens)  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [B, T, V]


def build(config, symbols):
    """The model of a configuration: equal seeds give equal weights, on every rank."""
    torch.manual_seed(config.seed)
    return GPT(config, symbols).to(getattr(torch, config.dtype))


@torch.no_grad()
def generate(model, tokens, length, seed):
    """`tokens`, a list, and `length` more, each drawn from the model's distribution for the one after."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        context = torch.tensor([tokens[-model.block_size :]])  # [1, T]
        probabilities = model(context)[0, -1].softmax(dim=0)  # [V]
        tokens = [*tokens, torch.multinomial(probabilities, 1, generator=generator).item()]
    return tokens
