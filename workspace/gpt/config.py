"""Every knob of a run, in one place. Each is a flag, `batch_size` is `--batch-size`: `python3 train.py --help`."""

import argparse
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

from parallel import STRATEGIES

# The strategies whose sums are those of ranks/communication.py; others have torch's own layers make most of them.
OWN_SUMS = ("tp", "ddp", "hybrid")
HERE = Path(__file__).resolve().parent.parent  # of train.py

# What a run is by default, by --recipe: the defaults of the knobs that are None in Config.
RECIPES = {
    "plain": {"optimizer": "adamw", "lr": 0.01, "steps": 600, "batch_size": 24, "warmup": 50},
    "fast": {"optimizer": "muon", "lr": 0.015, "steps": 280, "batch_size": 16, "warmup": 10},
}


def knob(default, help, choices=None):
    """A field of Config that carries what argparse needs."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class Config:
    # How the work is divided.
    parallel: str = knob(
        "none", "; ".join(f"{name}: {meaning}" for name, meaning in STRATEGIES.items()), tuple(STRATEGIES)
    )
    tp_size: int = knob(2, "hybrid: ranks that share one model; the others hold copies of it")
    sequence_parallel: str = knob(
        "off", "tp-dtensor: on: norms and the residual stream are sharded along the sequence", ("off", "on")
    )
    accumulate: int = knob(
        1, "gradient accumulation: microbatches that a rank computes one after another before an optimizer step"
    )
    microbatches: int = knob(4, "pp: microbatches that are in the pipeline at the same time")
    bucket_mb: float = knob(1.0, "ddp, hybrid: MB of gradients in one all-reduce")
    all_reduce: str = knob(
        "backend",
        "backend: gloo or nccl; socket: ranks/sockets.py, for tp, ddp and hybrid on CPUs; others refuse it",
        ("backend", "socket"),
    )
    wire: str = knob(
        "float32", "tp, ddp, hybrid: precision on the network; others refuse bfloat16", ("float32", "bfloat16")
    )

    # The model, and how it is trained: width and context are nanoGPT's for a CPU.
    recipe: str = knob(
        "plain", "plain: gpt/model.py by AdamW; fast: gpt/fast.py by Muon, which learns sooner", tuple(RECIPES)
    )
    layers: int = knob(2, "transformer blocks")
    heads: int = knob(4, "attention heads; tp needs a multiple of the world size")
    channels: int = knob(128, "width of the residual stream; a multiple of the heads")
    block_size: int = knob(64, "characters of context")

    # The text.
    text: str = knob("", "a text file to train on (default: the text that gpt/data.py prepared)")

    # The optimizer: warm-up, then down to nothing.
    steps: int = knob(None, "optimizer steps")
    batch_size: int = knob(None, "sequences of block-size characters in a step, over all ranks")
    optimizer: str = knob(
        None, "adamw; muon: for the matrices of the blocks of --recipe fast, AdamW for the rest", ("adamw", "muon")
    )
    lr: float = knob(None, "highest learning rate of AdamW")
    muon_lr: float = knob(0.04, "highest learning rate of Muon")
    warmup: int = knob(None, "steps of linear warm-up")
    decay: str = knob("linear", "how the learning rates go down after the warm-up", ("linear", "cosine"))
    final_lr: float = knob(0.0, "share of the highest learning rates that they go down to, for the step after the last")
    weight_decay: float = knob(0.1, "AdamW's decay of matrices; biases have none")
    beta2: float = knob(0.99, "AdamW's second beta; below the usual 0.999 because a batch has few tokens")
    clip: float = knob(1.0, "largest gradient norm")

    # What a run writes, and when.
    log_every: int = knob(10, "steps between log lines")
    eval_every: int = knob(100, "steps between evaluations of the whole validation text")
    eval_batch_size: int = knob(248, "sequences in a batch of the evaluation")
    profile_step: int = knob(20, "step to record for the timeline; the last but one if there are fewer; 0: none")
    checkpoint_every: int = knob(250, "steps between checkpoints; the last two are kept")
    checkpoint: str = knob(
        "full", "full: rank 0 writes one file; sharded: each rank writes its part", ("full", "sharded")
    )
    sample_length: int = knob(400, "characters to generate at the end, by the whole model on rank 0; 0: none")
    run_dir: str = knob("", "folder for what the run writes (default: runs/$SLURM_JOB_ID, or runs/local)")
    resume: str = knob(
        "", "checkpoint to continue from; auto: the newest whole one in the run's folder, if there is one"
    )

    # For lessons.
    break_: str = knob("", "make a classic mistake on purpose: a name of parallel/breaks.py, like missing-f")

    # The machine.
    seed: int = knob(1337, "decides the initial weights and every batch")
    dtype: str = knob("float32", "type of weights and activations", ("float32", "float64"))
    amp: str = knob(
        "auto",
        "type of matrix products and attention on a GPU, of float32 weights: bf16; auto: bf16 on a GPU; off: that of "
        "weights",
        ("auto", "off", "bf16"),
    )
    backend: str = knob(
        "auto",
        "gloo (CPU), nccl (a GPU for each rank), mpi (under mpirun) or auto: nccl if every rank has a GPU, else gloo",
        ("auto", "gloo", "nccl", "mpi"),
    )
    threads: int = knob(0, "threads of a rank (0: OMP_NUM_THREADS, else every core)")
    timeout: int = knob(300, "seconds after which a rank that waits for another gives up")

    def __post_init__(self):
        for name, default in RECIPES.get(self.recipe, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)  # a frozen dataclass has no other way
        check(self, LEAST)
        if self.channels % self.heads:
            raise ValueError(f"--channels {self.channels} is not a multiple of --heads {self.heads}")
        if self.recipe == "fast" and self.channels // self.heads % 2:
            each = f"{self.channels // self.heads} channels a head, an odd number"
            raise ValueError(
                f"--channels {self.channels} over --heads {self.heads} is {each}: rotary positions need pairs"
            )
        if self.accumulate > self.batch_size:
            raise ValueError(f"--accumulate {self.accumulate} is more than the {self.batch_size} of --batch-size")
        for name in ("lr", "muon_lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{flag(name)} must be above 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.final_lr <= 1:
            raise ValueError(f"--final-lr must be in [0, 1], a share of the highest, got {self.final_lr}")
        if self.optimizer == "muon" and self.recipe != "fast":
            raise ValueError(f"--optimizer muon is for --recipe fast, got --recipe {self.recipe}")
        if not self.bucket_mb > 0:
            raise ValueError(f"--bucket-mb must be above 0, got {self.bucket_mb}")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"--beta2 must be in [0, 1), got {self.beta2}")

    def run_path(self):
        """The folder for what the run writes."""
        return Path(self.run_dir) if self.run_dir else HERE / "runs" / os.environ.get("SLURM_JOB_ID", "local")


# The smallest value that makes sense, by field.
LEAST = {
    **dict.fromkeys(
        ("layers", "heads", "channels", "steps", "batch_size", "eval_batch_size", "timeout", "accumulate", "tp_size"), 1
    ),
    **dict.fromkeys(("log_every", "eval_every", "checkpoint_every", "microbatches"), 1),
    **dict.fromkeys(("warmup", "weight_decay", "sample_length", "profile_step", "seed", "threads"), 0),
    "block_size": 2,
    "clip": 1e-9,
}


def flag(name):
    return "--" + name.rstrip("_").replace("_", "-")


def check(config, least):
    """ValueError if a number is below its smallest value, or a word is none of its choices."""
    for name, smallest in least.items():
        if getattr(config, name) < smallest:
            raise ValueError(f"{flag(name)} must be at least {smallest}, got {getattr(config, name)}")
    for each in fields(config):
        allowed = each.metadata["choices"]
        if allowed and getattr(config, each.name) not in allowed:
            raise ValueError(f"{flag(each.name)} must be one of {', '.join(allowed)}, got {getattr(config, each.name)}")


def parse(arguments=None):
    """Config from the command line. ValueError says which knob is wrong and why."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a small GPT on a text, character by character.",
        epilog="On Slurm: sbatch jobs/tp.sbatch [flags]. On one machine: python3 train.py [flags].",
    )
    config = from_flags(Config, parser, arguments)
    for name in ("all_reduce", "wire"):
        if getattr(config, name) != getattr(Config, name) and config.parallel not in OWN_SUMS:
            raise ValueError(
                f"{flag(name)} {getattr(config, name)} is for --parallel {', '.join(OWN_SUMS)}, "
                f"got --parallel {config.parallel}"
            )
    return config


def of_recipes(name):
    """The defaults of a knob that each recipe has its own of, in words."""
    return ", ".join(f"{recipe} {values[name]}" for recipe, values in RECIPES.items())


def from_flags(kind, parser, arguments):
    """A dataclass of knobs from the command line."""
    for each in fields(kind):
        default = of_recipes(each.name) if each.default is None else each.default
        shown = "" if default == "" else f" (default: {default})"
        parser.add_argument(
            flag(each.name),
            dest=each.name,
            type=each.type,
            default=each.default,
            choices=each.metadata["choices"],
            metavar=None if each.metadata["choices"] else each.type.__name__.upper(),
            help=each.metadata["help"] + shown,
        )
    return kind(**vars(parser.parse_args(arguments)))
