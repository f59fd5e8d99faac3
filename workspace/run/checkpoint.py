"""Checkpoints that any strategy and any number of ranks can continue.

    checkpoints/step-000250.json         what it is, and the checksum of each file: written last, so it is all there
    checkpoints/step-000250-rank-0.pt    parameters and the optimizer's state, whole (full) or a part (sharded)

A parameter is saved under its name in the whole model, with the place of the part that a file holds: loading puts the
parts of its own together, wherever they are in the files, which are mapped into memory and not read whole. Of copies,
one rank's is saved. The data's position is the step: a batch follows from seed and step.
"""

import hashlib
import json
import os
import pickle
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from gpt.config import flag
from ranks import rendezvous, sharding

FORMAT = 3
KEPT = 2  # so that there is another one if the newest cannot be read
# Knobs that say what the numbers mean.
FIXED = ("recipe", "optimizer", "layers", "heads", "channels", "block_size", "dtype")
# Knobs that a run may resume with another value of, and then trains otherwise than a run that nothing stopped.
SAID = (
    *("seed", "batch_size", "steps", "lr", "muon_lr", "warmup", "decay", "final_lr"),
    *("weight_decay", "beta2", "clip", "wire"),
)

# What torch.load, and a look into what it gives, raise for a file that is no checkpoint, or half of one.
UNREADABLE = (
    OSError,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)


def save(folder, config, text, step, losses, shards, optimizer):
    """Write the state after `step` into `folder`, by all ranks; a checkpoint appears whole, or not at all.

    `losses` are the (sum, count) since the last log line. Returns the checkpoint's path.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    held = parts_of(rank, shards, optimizer)
    if config.checkpoint == "full":
        held = gathered(rank, held)
    stem = folder / f"step-{step:06d}"
    sums = [None] * world_size
    mine = None
    if rank == 0 or config.checkpoint == "sharded":
        folder.mkdir(parents=True, exist_ok=True)
        file = {"state": held, "random_state": torch.get_rng_state()}
        mine = write(Path(f"{stem}-rank-{rank}.pt"), lambda temporary: torch.save(file, temporary))
    dist.all_gather_object(sums, mine)
    path = stem.with_suffix(".json")
    if rank == 0:
        record = {
            "format": FORMAT,
            "step": step,
            "losses": losses,
            "config": asdict(config),
            "world_size": world_size,
            "text_sha256": text.sha256,
            "symbols": text.symbols,
            "files": {f"{stem.name}-rank-{writer}.pt": digest for writer, digest in enumerate(sums) if digest},
        }
        write(path, lambda temporary: temporary.write_text(json.dumps(record, indent=2) + "\n"))
        for old in by_step(folder)[:-KEPT]:
            remove(old)
    return path


def parts_of(rank, shards, optimizer):
    """What this rank saves, {key: {name: (place, tensor)}}: its parts of parameters and of the optimizer's state."""
    state = {"parameter": {name: shard.parameter for name, shard in shards.items()}}
    for name, shard in shards.items():
        for key, tensor in optimizer.state[shard.parameter].items():
            if torch.is_tensor(tensor) and tensor.dim():  # not Adam's count of steps
                state.setdefault(key, {})[name] = tensor
    mine = saved_by(rank, {name: shard.place() for name, shard in shards.items()})
    return {
        key: {
            name: (shards[name].place(), shards[name].part(tensor).cpu().clone())
            for name, tensor in tensors.items()
            if name in mine
        }
        for key, tensors in state.items()
    }


def gathered(rank, held):
    """On rank 0 the parts of all ranks, put together to whole tensors; on the others nothing.

    One key after the other, so that rank 0 never has the parts of all beside the whole tensors of all.
    """
    whole = {}
    for key in sorted(keys(rendezvous.gather(list(held)))):
        parts = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object(held.pop(key, {}), parts)
        if rank == 0:
            whole[key] = {name: ((None, 0, 0, 0), tensor) for name, tensor in sharding.join(parts).items()}
    return whole


def saved_by(rank, places):
    """The names whose part this rank is to save, from the place of each: the first of the ranks that hold the same."""
    of_ranks = rendezvous.gather(places)
    return {name for name, place in places.items() if not any(each.get(name) == place for each in of_ranks[:rank])}


def write(path, content):
    """Let `content` write a file, which appears whole or not at all; returns its sha256."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    content(temporary)
    digest = checksum(temporary)
    os.replace(temporary, path)
    return digest


def checksum(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_step(folder):
    """The checkpoints in a folder, the oldest first."""
    return sorted(folder.glob("step-*.json"), key=step_of)


def step_of(path):
    return int(path.name.split(".")[0].split("-")[1])


def drop_after(folder, step):
    """Remove what an earlier run of the folder left behind this step, and what was never finished."""
    for file in folder.glob("step-*"):
        if step_of(file) > step:
            file.unlink()
    for file in folder.glob(".step-*"):
        file.unlink()


def remove(path):
    """Remove a checkpoint: first what makes it valid, then its files."""
    path.unlink()
    for file in path.parent.glob(f"{path.stem}-rank-*.pt"):
        file.unlink()


def together(parts):
    """Whole tensors, {key: {name: tensor}}, from the parts of all ranks, {key: {name: (place, tensor)}}."""
    return {key: sharding.join(part.get(key, {}) for part in parts) for key in keys(parts)}


def whole_parameters(path):
    """The whole tensors of a checkpoint's parameters, by name. Raises as `read`."""
    return sharding.join(part.get("parameter", {}) for part in read(path)["parts"])


def keys(parts):
    """What is kept of a parameter: itself, and what the optimizer keeps."""
    return {key for part in parts for key in part}


def load(wanted, folder, config, text):
    """The checkpoint to continue from, or None, and what was passed over to find it, as a list of messages.

    `auto` takes the newest in `folder` that is whole and fits, or None if the folder has none. ValueError if a named
    one cannot be used, or none of those that are there.
    """
    if wanted != "auto":
        return fitting(read(Path(wanted)), config, text), []
    passed_over = []
    for path in reversed(by_step(folder)):
        try:
            return fitting(read(path), config, text), passed_over
        except Unusable as error:
            passed_over.append(str(error))
    if passed_over:
        raise ValueError(
            f"no checkpoint in {folder} can be used; move it away to begin anew:\n" + "\n".join(passed_over)
        )
    return None, []


class Unusable(ValueError):
    """A file that is no checkpoint, a damaged one, or one of another model or text."""


def read(path):
    """A checkpoint: {"step", "config", ..., "parts": {key: {name: (place, tensor)}} of each file}."""
    try:
        checkpoint = json.loads(path.read_text())
        if checkpoint["format"] != FORMAT:
            raise ValueError(f"format {checkpoint['format']}, expected {FORMAT}")
        parts = []
        for name, digest in checkpoint["files"].items():
            file = path.with_name(name)
            if checksum(file) != digest:
                raise ValueError(f"{file} is damaged: its checksum is not the one that was written down")
            parts.append(torch.load(file, map_location="cpu", weights_only=True, mmap=True))
        checkpoint["parts"] = [part["state"] for part in parts]
        for key in keys(checkpoint["parts"]):
            sharding.require_all([part.get(key, {}) for part in checkpoint["parts"]])
        checkpoint["random_states"] = [part["random_state"] for part in parts]
        checkpoint["path"] = str(path)
        return checkpoint
    except OSError as error:
        raise Unusable(f"cannot read the checkpoint {error.filename or path}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise Unusable(f"{path} is no checkpoint of train.py: {type(error).__name__}: {error}") from None


def fitting(checkpoint, config, text):
    """The checkpoint, if it is of the run's model and text and not beyond its steps. ValueError if not."""
    path, theirs = checkpoint["path"], checkpoint["config"]
    for name in FIXED:
        if theirs[name] != getattr(config, name):
            raise Unusable(f"{path} has {name} {theirs[name]}, but this run has {getattr(config, name)}")
    if checkpoint["text_sha256"] != text.sha256:
        raise Unusable(
            f"{path} was trained on the text {checkpoint['text_sha256'][:12]}..., this run has {text.sha256[:12]}..."
        )
    if checkpoint["step"] > config.steps:
        raise ValueError(f"{path} is at step {checkpoint['step']}, and this run ends at --steps {config.steps}")
    return checkpoint


def changed(checkpoint, config):
    """The knobs of a run that are not those of the checkpoint it resumes from: "--lr 0.015 -> 0.01"."""
    pairs = [(name, checkpoint["config"][name], getattr(config, name)) for name in SAID]
    return [f"{flag(name)} {before} -> {now}" for name, before, now in pairs if before != now]


def restore(checkpoint, shards, optimizer):
    """Put this rank's part of a checkpoint into the model and the optimizer, and let go of the checkpoint's tensors."""
    parts = checkpoint.pop("parts")
    for name, shard in shards.items():
        of_parameter = {"step": torch.tensor(float(checkpoint["step"]))}
        for key in keys(parts):
            found = [part[key][name] for part in parts if name in part.get(key, {})]
            if key == "parameter":
                into = shard.parameter
            elif found:
                into = of_parameter[key] = torch.zeros_like(shard.parameter.detach())
            for place, tensor in found:
                shard.take(place, tensor, into)
        optimizer.state[shard.parameter] = of_parameter
    random_states = checkpoint.pop("random_states")
    torch.set_rng_state(random_states[dist.get_rank() % len(random_states)])
