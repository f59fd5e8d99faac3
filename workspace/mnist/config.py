"""Every knob of train_mnist.py, in one place, as gpt/config.py has those of train.py."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from gpt.config import HERE, check, from_flags, knob


@dataclass(frozen=True)
class Config:
    # The data.
    data: str = knob(
        "", "folder with MNIST's four files, or others in its format (default: what mnist/data.py prepared)"
    )

    # The optimizer: AdamW; the learning rate rises, and falls to nothing at the end (torch's OneCycleLR).
    epochs: int = knob(2, "times that every training image is seen")
    batch_size: int = knob(128, "images in a step, over all ranks; a multiple of the world size")
    lr: float = knob(6e-3, "highest learning rate")
    warmup: float = knob(0.2, "share of the steps in which the learning rate rises")
    weight_decay: float = knob(0.01, "AdamW's decay")
    amp: str = knob(
        "auto",
        "forward in half precision. off; bf16, on a CPU tried in a process of its own first; fp16: on a GPU, with a "
        "scaled loss; auto: fp16 on a GPU, off on a CPU",
        ("off", "auto", "bf16", "fp16"),
    )

    # What a run writes, and when.
    log_every: int = knob(100, "steps between log lines; each epoch ends with one too")
    eval_batch_size: int = knob(500, "images that a rank evaluates at a time")
    run_dir: str = knob("", "folder for what the run writes (default: runs/$SLURM_JOB_ID, or runs/local)")
    resume: str = knob(
        "", "checkpoint to continue from; auto: the newest whole one in the run's folder, if there is one"
    )

    # The machine.
    seed: int = knob(1337, "decides the initial weights and the order of the images")
    backend: str = knob(
        "auto",
        "gloo (CPU), nccl (a GPU for each rank), mpi (under mpirun) or auto: nccl if every rank has a GPU, else gloo",
        ("auto", "gloo", "nccl", "mpi"),
    )
    threads: int = knob(0, "threads of a rank (0: OMP_NUM_THREADS, else every core)")
    timeout: int = knob(300, "seconds after which a rank that waits for another gives up")

    def __post_init__(self):
        check(self, LEAST)
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"--lr must be above 0 and finite, got {self.lr}")
        if not 0 < self.warmup < 1:
            raise ValueError(f"--warmup must be between 0 and 1, a share of the steps, got {self.warmup}")

    def run_path(self):
        """The folder for what the run writes."""
        return Path(self.run_dir) if self.run_dir else HERE / "runs" / os.environ.get("SLURM_JOB_ID", "local")


# The smallest value that makes sense, by field.
LEAST = {
    **dict.fromkeys(("epochs", "batch_size", "log_every", "eval_batch_size", "timeout"), 1),
    **dict.fromkeys(("weight_decay", "seed", "threads"), 0),
}


def parse(arguments=None):
    """Config from the command line. ValueError says which knob is wrong and why."""
    parser = argparse.ArgumentParser(
        prog="train_mnist.py",
        description="Train a convolutional network on MNIST, data parallel.",
        epilog="On Slurm: sbatch jobs/mnist.sbatch [flags]. On one machine: python3 train_mnist.py [flags].",
    )
    return from_flags(Config, parser, arguments)
