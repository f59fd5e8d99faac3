"""What each part of --recipe fast is worth: the validation loss after equally many steps, without one part at a time.

srun python3 -m lessons.ablation
srun python3 -m lessons.ablation --only everything --seed 2

It counts steps and not seconds, so a busy machine changes nothing. All rows see the same batches.
"""

import argparse
import math
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.nn import functional as F

from gpt import data, fast
from gpt.batches import TextData
from gpt.config import Config
from gpt.model import outline
from parallel import none
from ranks import environment, rendezvous
from train import Trainer

STEPS = 120


class Serial(fast.Block):
    """The block of two halves, one after the other: the MLP sees what attention found."""

    def forward(self, x):
        y, mlp = self.inside(x)
        x = x + self.outward(torch.cat((y, torch.zeros_like(mlp)), dim=-1).flatten(2))
        y, mlp = self.inside(x)
        return x + F.linear(torch.cat((torch.zeros_like(y), mlp), dim=-1).flatten(2), self.outward.weight)


@contextmanager
def without_qk_norm(config):
    """Queries and keys of any length, and the usual scale of attention, 1/sqrt(D)."""
    scale = 1 / math.sqrt(config.channels // config.heads)
    with mock.patch.multiple(fast, same_length=lambda x: x, SHARPNESS=scale):
        yield


# Row -> (what Config gets, what is patched while model and training live).
ROWS = {
    "everything": ({}, nullcontext),
    "blocks one after the other": ({}, lambda _: mock.patch.object(fast, "Block", Serial)),
    "one character, not a sum of four": ({}, lambda _: mock.patch.object(fast, "RECENT", 1)),
    "no QK-norm": ({}, without_qk_norm),
    "AdamW instead of Muon": ({"optimizer": "adamw"}, nullcontext),
    "nothing: --recipe plain": ({"recipe": "plain"}, nullcontext),
}


def loss_of(row, text, **knobs):
    """The loss on the whole validation text, in nats a character."""
    changes, patched = ROWS[row]
    config = Config(**{"recipe": "fast", "batch_size": 16, "warmup": 10, **knobs, **changes})
    with patched(config):
        batches = TextData(text.content, text.symbols, config)
        trainer = Trainer(config, none, outline(config, len(text.symbols)), batches, torch.device("cpu"))
        for step in range(1, config.steps + 1):
            trainer.step(step, SimpleNamespace(stepped=lambda *_: None))
        return trainer.evaluate()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=ROWS, help="one row")
    parser.add_argument("--text", default="", help="a text file (default: the text that gpt/data.py prepared)")
    parser.add_argument("--steps", type=int, default=STEPS)
    for name in ("layers", "channels", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    options = vars(parser.parse_args())
    only, path = options.pop("only"), options.pop("text")
    try:
        text = data.load(path)
        Config(recipe="fast", **options)
        env = environment.read()
        none.check(None, env.world_size)
    except ValueError as error:
        sys.exit(f"ablation: error: {error}")
    with rendezvous.process_group(env, "gloo", 60):
        show([only] if only else ROWS, text, options)


def show(rows, text, options):
    """Train for each row, and print it."""
    print(f"{'':36}loss after {options['steps']:,} steps    difference")
    first = None
    for row in rows:
        loss = loss_of(row, text, **options)
        first = first or loss
        print(f"{row:36}{loss:8.4f}{loss - first:+22.4f}", flush=True)


if __name__ == "__main__":
    main()
