"""The models and the optimizers once more, by torch's own modules and by formulas: the code under test beside them."""

import math

import torch
from torch import nn
from torch.nn import functional as F

RECENT, SHARPNESS = 4, 0.35  # as fast.py says
MUON = (3.4445, -4.7750, 2.0315)  # https://kellerjordan.github.io/posts/muon/


def fast(weights, tokens, heads):
    """Logits [B, T, V] of fast.py's model with these weights, by name, for tokens [B, T]."""
    V, C = weights["head.weight"].shape
    T, D = tokens.shape[1], C // heads
    x = 0
    for back in range(RECENT):
        before = torch.zeros_like(tokens)
        before[:, back:] = tokens[:, : T - back]
        x = (
            x
            + F.one_hot(before, V).to(weights["head.weight"].dtype)
            @ weights["embedding.token.weight"][back * V : (back + 1) * V]
        )
    for number in range(sum(name.endswith("inward.weight") for name in weights)):
        layer = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"blocks.{number}.")}
        wide = normed(x) @ layer["inward.weight"].T + layer["inward.bias"]
        q, k, v, mlp = wide.unflatten(-1, (heads, 7 * D)).split((D, D, D, 4 * D), dim=-1)  # [B, T, H, ..]
        q, k = (turned(normed(each)).flatten(2) for each in (q, k))
        y = attention(q * SHARPNESS * math.sqrt(D), k, v.flatten(2), heads)
        curved = mlp / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (mlp + 0.044715 * mlp**3)))
        both = torch.cat((y.unflatten(-1, (heads, D)), curved), dim=-1).flatten(2)
        x = x + both @ layer["outward.weight"].T + layer["outward.bias"]
    return normed(x) @ weights["head.weight"].T


def normed(x):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def turned(x):
    """Pairs of channels of [B, T, H, D] turned by their position: the j-th of n by t / 1000^(j / (n - 1)) radians."""
    T, n = x.shape[1], x.shape[-1] // 2
    turned = torch.empty_like(x)
    for j in range(n):
        angles = torch.arange(T, dtype=x.dtype).view(T, 1) / 1000 ** (j / (n - 1))
        a, b = x[..., 2 * j], x[..., 2 * j + 1]  # [B, T, H]
        turned[..., 2 * j] = a * angles.cos() - b * angles.sin()
        turned[..., 2 * j + 1] = a * angles.sin() + b * angles.cos()
    return turned


def attention(q, k, v, heads):
    """Causal attention [B, T, C] by torch's module, whose projections let everything through."""
    C, T = q.shape[-1], q.shape[1]
    module = nn.MultiheadAttention(C, heads, bias=False, batch_first=True, dtype=q.dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(C).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(C))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    return module(q, k, v, attn_mask=later, need_weights=False)[0]


def plain(weights, tokens, heads):
    """Logits [B, T, V] of model.py's model, its blocks by torch's encoder layer."""
    T, C = tokens.shape[1], weights["head.weight"].shape[1]
    x = weights["embedding.token.weight"][tokens] + weights["embedding.position.weight"][:T]
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.proj.",
        "linear1.": "mlp.fc.",
        "linear2.": "mlp.proj.",
        "norm1.": "attention_norm.",
        "norm2.": "mlp_norm.",
    }
    for number in range(sum(name.endswith("qkv.weight") for name in weights)):
        layer = nn.TransformerEncoderLayer(C, heads, 4 * C, **options, dtype=x.dtype)
        given = {
            theirs + kind: weights[f"blocks.{number}.{ours}{kind}"]
            for theirs, ours in names.items()
            for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):  # torch's rows are ordered [3, H, D], not [H, 3, D]
            rows = given[f"self_attn.in_proj_{kind}"].unflatten(0, (heads, 3, C // heads))
            given[f"self_attn.in_proj_{kind}"] = rows.transpose(0, 1).flatten(0, 2)
        x = torch.func.functional_call(layer, given, (x,), {"src_mask": later})
    x = F.layer_norm(x, (C,), weights["norm.weight"], weights["norm.bias"])
    return x @ weights["head.weight"].T


class Optimizer:
    """torch's AdamW, and Muon by singular values for the matrices of the blocks; the gradient is clipped by torch."""

    def __init__(self, model, config):
        named = dict(model.named_parameters())
        self.muon = {
            n: p for n, p in named.items() if config.optimizer == "muon" and n.startswith("blocks.") and p.ndim > 1
        }
        rest = {name: p for name, p in named.items() if name not in self.muon}
        decayed = [p for p in rest.values() if p.ndim > 1]
        others = [p for p in rest.values() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0}]
        self.adamw = torch.optim.AdamW(groups, betas=(0.9, config.beta2), foreach=False)
        self.model, self.config, self.momenta = model, config, {}

    def step(self, share):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for group in self.adamw.param_groups:
            group["lr"] = share * self.config.lr
        for name, parameter in self.muon.items():
            gradient = parameter.grad
            momentum = self.momenta[name] = 0.8 * self.momenta.get(name, 0) + 0.2 * gradient
            ahead = 0.8 * momentum + 0.2 * gradient
            columns = name.endswith("outward.weight")  # cut into heads by columns, not by rows
            pieces = (ahead.T if columns else ahead).split(self.config.channels // self.config.heads)
            change = torch.cat([by_singular_values(piece) for piece in pieces])
            parameter.data -= share * self.config.muon_lr * (change.T if columns else change)
            parameter.grad = None
        self.adamw.step()
        self.model.zero_grad()


def by_singular_values(matrix, iterations=5):
    """What Newton-Schulz makes of a matrix: its polynomial applied to each singular value."""
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    values = values / (matrix.norm() + 1e-7)
    for _ in range(iterations):
        values = MUON[0] * values + MUON[1] * values**3 + MUON[2] * values**5
    return u * values @ v
