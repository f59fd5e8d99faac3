"""nanoGPT's model, to be compared with: learned positions, a head that is the embedding, no biases, small weights.

Its head and embedding are one parameter, so no strategy may cut it: only none and ddp take it. Run it at its
settings for a CPU as `make bench-train` does. Source: https://github.com/karpathy/nanoGPT, model.py.

Legend: B batch, T time, C channels, H heads, D channels of a head (C = H D), V symbols in the vocabulary.
"""

import math

from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        channels = config.channels
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(channels, bias=False)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.projection = nn.Linear(channels, channels, bias=False)
        self.mlp_norm = nn.LayerNorm(channels, bias=False)
        self.up = nn.Linear(channels, 4 * channels, bias=False)
        self.down = nn.Linear(4 * channels, channels, bias=False)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 3 of [B, H, T, D]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D]
        return self.projection(y.transpose(1, 2).flatten(2))  # [B, T, H D] -> [B, T, C]


class NanoGPT(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config, symbols):
        super().__init__()
        self.block_size = config.block_size
        self.token_embedding = nn.Embedding(symbols, config.channels)
        self.position_embedding = nn.Embedding(config.block_size, config.channels)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.channels, bias=False)
        for name, parameter in self.named_parameters():
            adds_up = name.endswith(("projection.weight", "down.weight"))  # in the residual stream
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if adds_up else 0.02)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)  # [B, T, V]
