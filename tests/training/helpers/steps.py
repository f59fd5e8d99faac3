"""Five steps of train.py with a small model, by a strategy: everything that the equality tests compare."""

import random
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import train
from gpt.batches import TextData
from gpt.config import Config
from gpt.model import build
from ranks import communication, sharding
from ranks.rendezvous import gather
from ranks.sharding import local

LAYERS, SYMBOLS, STEPS, CLIP = 2, 27, 5, 0.05
DTYPES = ("float64", "float32")
ALPHABET = " abcdefghijklmnopqrstuvwxyz"
# Its last 70 characters are the validation text: batches of 3, 1 and 1 rows, the last of 5 characters.
TEXT = "".join(random.Random(7).choices(ALPHABET, k=700))

# Tests of what torch leaves undone, which this project mends.
of_torch_2_6 = pytest.mark.skipif(not torch.__version__.startswith("2.6"), reason="true of torch 2.6; 2.14 is right")


def small(dtype, **changed):
    sizes = {"layers": LAYERS, "heads": 4, "channels": 32, "block_size": 16, "batch_size": 5, "eval_batch_size": 3}
    optimizer = {"recipe": "plain", "steps": STEPS, "warmup": 2, "lr": 1e-3, "muon_lr": 1e-3, "clip": CLIP}
    return Config(**{**sizes, **optimizer, "dtype": dtype, **changed})


def measure(strategy, dtype, **changed):
    """Of the first step: loss, gradient norm, gradients, number of collectives by kind. Of the last: the number of
    collectives, all parameters, and the replicated ones. Then the validation loss, and what logits depend on.
    """
    trainer, losses, found = start(strategy, dtype, **changed), Losses(), {}

    def look(shards, norm, limit):
        if not found:
            found.update(norm=norm, calls=dict(communication.calls))
            found["gradients"] = whole({name: (shard, shard.parameter.grad) for name, shard in shards.items()})
        clip(shards, norm, limit)

    clip = train.clip
    with patch.object(train, "clip", look):
        for step in range(1, STEPS + 1):
            communication.calls.clear()
            found["last calls"] = trainer.step(step, losses)
    found["loss"] = trainer.whole_loss(torch.tensor(losses[0], dtype=getattr(torch, dtype)))
    found["parameters"] = whole({name: (shard, shard.parameter) for name, shard in trainer.shards.items()})
    found["replicas"] = {
        name: local(shard.parameter).detach().clone()
        for name, shard in trainer.shards.items()
        if shard.dimension is None
    }
    found["validation"] = trainer.evaluate()
    found["earlier logits"], found["later logits"] = reads_the_future(trainer)
    communication.configure(Config())
    return found


def start(strategy, dtype, **changed):
    """A Trainer of a small model that is not fresh."""
    config = small(dtype, **changed)
    communication.configure(config)
    model = build(config, SYMBOLS)
    disturb(model)
    return train.Trainer(config, strategy, model, TextData(TEXT, ALPHABET, config), torch.device("cpu"))


class Losses(list):
    """A journal that keeps the loss of each step."""

    def stepped(self, loss, *_):
        self.append(loss)


def reads_the_future(trainer):
    """By how much the logits before, and those after, the middle of the text change if the text does from there on."""
    tokens = trainer.batches.batch(1)[0]  # [B, T]
    middle = tokens.shape[1] // 2
    other = torch.cat((tokens[:, :middle], (tokens[:, middle:] + 1) % SYMBOLS), dim=1)
    change = (logits(trainer, tokens) - logits(trainer, other)).nan_to_num(0).abs()  # of padding: -inf less -inf
    return change[:, :middle].max().item(), change[:, middle:].max().item()


def logits(trainer, tokens):
    """Those of this rank: of its share of the batch, its slice of the vocabulary. Of a stage of a pipeline that has no
    head, what it passes on."""
    found = []
    (head,) = (layer for name, layer in trainer.model.named_modules() if name.split(".")[-1] == "head")
    hook = head.register_forward_hook(lambda layer, inputs, output: found.append(local(output)))
    with torch.no_grad():
        mine = trainer.strategy.local_batch(trainer.model, tokens, tokens)
        trainer.strategy.mean_loss(trainer.model, *mine, tokens.numel())
    hook.remove()
    return found[0]


def whole(tensors):
    """Whole tensors by name, on every rank, from (Shard, tensor) by name of each."""
    parts = {name: (shard.place(), shard.part(tensor).clone()) for name, (shard, tensor) in tensors.items()}
    return sharding.join(gather(parts) if dist.is_initialized() else [parts])


def disturb(model):
    """Fresh biases are 0 and norms 1, at which some defects do not show."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
