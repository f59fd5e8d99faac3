"""A plain GPT, as nanoGPT has it: --recipe plain. Nothing in here knows of ranks: parallel/tp.py cuts it from outside.

Three choices make the cuts simple. The rows of `qkv` are ordered head by head, [H, 3, D], so that an equal cut keeps
whole heads; the number of heads is read off the activations, so that a layer with half the rows has half the heads;
and the head of the vocabulary is a matrix of its own: tied to the embedding it would be one parameter with two names,
to be minded by every optimizer, checkpoint and cut, to save 1 % of the parameters. Initial weights are torch's own: a
model as small as this one learns sooner from them than from GPT-2's small ones.

Source: Radford et al. 2019, GPT-2; https://github.com/karpathy/nanoGPT, model.py.

Legend: B batch, T time, C channels, H heads, D channels of a head (C = H D), V symbols in the vocabulary.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ranks import sharding


class Embedding(nn.Module):
    """Tokens [B, T] to x [B, T, C]: a vector of the symbol and one of the position."""

    def __init__(self, config, symbols):
        super().__init__()
        self.token = nn.Embedding(symbols, config.channels)
        self.position = nn.Embedding(config.block_size, config.channels)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # [T]
        return self.token(tokens) + self.position(positions)


class Attention(nn.Module):
    """[B, T, C] to [B, T, C]: each position from itself and those before."""

    def __init__(self, config):
        super().__init__()
        self.head_channels = config.channels // config.heads
        self.qkv = nn.Linear(config.channels, 3 * config.channels)
        self.proj = nn.Linear(config.channels, config.channels)

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (-1, 3, self.head_channels))  # [B, T, H, 3, D]
        q, k, v = heads.permute(3, 0, 2, 1, 4)  # 3 of [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D]
        return self.proj(y.transpose(1, 2).flatten(2))  # [B, T, H D] -> [B, T, C]


class MLP(nn.Module):
    """[B, T, C] to [B, T, C]: each position by itself, through 4 C channels."""

    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(config.channels, 4 * config.channels)
        self.proj = nn.Linear(4 * config.channels, config.channels)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    """[B, T, C] to [B, T, C]: attention, then the MLP, each behind a norm of its own and added to what it came from."""

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
        self.embedding = Embedding(config, symbols)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels)
        self.head = nn.Linear(config.channels, symbols, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [B, T, V]


def outline(config, symbols):
    """The model of a configuration on torch's meta device: shapes without memory, for a strategy to cut and to fill."""
    kind = kind_of(config.recipe)
    with torch.device("meta"):
        model = kind(config, symbols).to(getattr(torch, config.dtype))
    model.weights = partial(weights, kind, config, symbols)
    return model


def kind_of(recipe):
    """The class of a recipe's model."""
    if recipe == "fast":
        from gpt.fast import FastGPT  # here, so that nobody needs that file to read this one

        return FastGPT
    return GPT


def weights(kind, config, symbols):
    """(name, whole tensor) of each parameter, one layer in memory at a time. Equal seeds give equal weights."""
    torch.manual_seed(config.seed)
    with torch.device("meta"):
        model = kind(config, symbols)
    for name, layer in model.named_modules():
        if not hasattr(layer, "reset_parameters"):
            continue
        layer.to_empty(device="cpu")
        layer.reset_parameters()
        if hasattr(model, "initialise"):  # the fast model has weights of its own
            model.initialise(name, layer)
        for own, parameter in layer.named_parameters():
            yield f"{name}.{own}", parameter.detach()
        layer.to_empty(device="meta")


def build(config, symbols):
    """The whole model of a configuration, on the CPU."""
    model = outline(config, symbols)
    return sharding.fill(model, sharding.whole, torch.device("cpu"))


@torch.no_grad()
def generate(model, tokens, length, seed):
    """`tokens`, a list, and `length` more, each drawn from the model's distribution for the one after."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        context = torch.tensor([tokens[-model.block_size :]])  # [1, T]
        probabilities = model(context)[0, -1].softmax(dim=0)  # [V]
        tokens = [*tokens, torch.multinomial(probabilities, 1, generator=generator).item()]
    return tokens
