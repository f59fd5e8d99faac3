"""Checkpoints: the whole model and the optimiser's state, without a trace of ranks: any world size can continue one.

There is no random state in it, because nothing draws random numbers along the way: a batch follows from seed and step.
"""

import os
import pickle
from dataclasses import asdict

import torch

FORMAT = 1
FIXED = ("layers", "heads", "channels", "block_size", "dtype")  # knobs that say what the weights mean
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, shaped as their parameter

# What torch.load, and a look into what it gives, raise for a file that is no checkpoint, or half of one.
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError)


def save(path, config, text, step, strategy, model, optimizer, write):
    """Gather on every rank; one rank, which has `write`, writes. The file appears whole, or the old one stays."""
    parameters = dict(model.named_parameters())
    checkpoint = {
        "format": FORMAT,
        "step": step,
        "config": asdict(config),
        "text_sha256": text.sha256,
        "symbols": text.symbols,
        "model": strategy.full_state(model, parameters),
    }
    for moment in MOMENTS:
        tensors = {name: optimizer.state[parameter][moment] for name, parameter in parameters.items()}
        checkpoint[moment] = strategy.full_state(model, tensors)
    if write:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save(checkpoint, temporary)
        os.replace(temporary, path)
    return checkpoint


def load(path, config, text):
    """A checkpoint that fits the run. ValueError if it cannot be read, or is of another model or text."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"format {checkpoint['format']}, expected {FORMAT}")
        theirs = checkpoint["config"]
        step = checkpoint["step"]
    except OSError as error:
        raise ValueError(f"cannot read the checkpoint {path}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ValueError(f"{path} is no checkpoint of train.py: {type(error).__name__}: {error}") from None
    for name in FIXED:
        if theirs[name] != getattr(config, name):
            raise ValueError(f"{path} has {name} {theirs[name]}, but this run has {getattr(config, name)}")
    if checkpoint["text_sha256"] != text.sha256:
        raise ValueError(
            f"{path} was trained on the text {checkpoint['text_sha256'][:12]}..., this run has {text.sha256[:12]}..."
        )
    if step >= config.steps:
        raise ValueError(f"{path} is at step {step}, and this run ends at --steps {config.steps}")
    return checkpoint


def restore(checkpoint, strategy, model, optimizer):
    """Put this rank's part of a checkpoint into the model and the optimiser."""
    state = strategy.local_state(model, checkpoint["model"])
    moments = {moment: strategy.local_state(model, checkpoint[moment]) for moment in MOMENTS}
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])
        optimizer.state[parameter] = {
            "step": torch.tensor(float(checkpoint["step"])),
            **{moment: moments[moment][name] for moment in MOMENTS},
        }
