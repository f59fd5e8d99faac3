"""Checkpoints of train_mnist.py: one file an epoch, `epoch-1.pt`, by rank 0; any number of ranks can continue one.

There is no random state in it: the order of the images follows from seed and epoch.
"""

import os
from dataclasses import asdict

import torch

from run.checkpoint import UNREADABLE

FORMAT = 1
# Knobs that may change in a resumed run, which still ends where an uninterrupted one does.
FREE = {"data", "log_every", "eval_batch_size", "run_dir", "resume", "backend", "threads", "timeout"}


def path(folder, epoch):
    return folder / f"epoch-{epoch}.pt"


def save(folder, epoch, config, digits, **parts):
    """Write a checkpoint of `parts`, things with a state_dict. The file appears whole, or not at all."""
    states = {name: part.state_dict() for name, part in parts.items()}
    content = {"format": FORMAT, "epoch": epoch, "config": asdict(config), "data": digits.sha256(), **states}
    temporary = folder / f".epoch-{epoch}.pt.{os.getpid()}"
    torch.save(content, temporary)
    os.replace(temporary, path(folder, epoch))


def load(file, config, digits):
    """A checkpoint that fits the run. ValueError if it cannot be read, or is of another run or other data."""
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"format {checkpoint['format']}, expected {FORMAT}")
        theirs, data = checkpoint["config"], checkpoint["data"]
    except OSError as error:
        raise ValueError(f"cannot read the checkpoint {file}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ValueError(f"{file} is no checkpoint of train_mnist.py: {type(error).__name__}: {error}") from None
    for name, ours in asdict(config).items():
        if name not in FREE and theirs[name] != ours:
            raise ValueError(f"{file} has {name} {theirs[name]}, but this run has {ours}")
    if data != digits.sha256():
        raise ValueError(f"{file} was trained on other data than {digits.name}")
    return checkpoint


def newest(folder, config, digits):
    """The newest checkpoint in a run's folder that fits, None if there is none; and why newer ones do not.

    ValueError if there are some, and none fits.
    """
    passed_over = []
    for epoch in range(config.epochs, 0, -1):
        if path(folder, epoch).exists():
            try:
                return load(path(folder, epoch), config, digits), passed_over
            except ValueError as error:
                passed_over.append(str(error))
    if passed_over:
        raise ValueError(
            "\n".join([f"no checkpoint in {folder} can be used; move it away to begin anew:", *passed_over])
        )
    return None, []


def drop_after(folder, epoch):
    """Remove the checkpoints of later epochs, which an earlier run of the folder left."""
    for file in folder.glob("epoch-*.pt"):
        number = file.stem.removeprefix("epoch-")
        if number.isdecimal() and int(number) > epoch:
            file.unlink()
