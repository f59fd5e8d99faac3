"""No rank needs room for the whole model: not while it trains, and not while the model is made."""

import json
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import parallel
import train
from gpt.batches import TextData
from gpt.model import build, outline
from processes import spawn, succeed
from ranks import sharding
from run import checkpoint
from steps import ALPHABET, SYMBOLS, TEXT, Losses, small

LESSON = "from lessons import memory; memory.main()"
SIZES = {"layers": 4, "heads": 4, "channels": 64, "batch_size": 8}


class Live(TorchDispatchMode):
    """The most bytes of tensors alive at a time, of those that operations made under this mode."""

    def __init__(self):
        super().__init__()
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.storages = {key: each for key, each in self.storages.items() if not each[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.storages.values()))
        return made


def trained(rank, world_size, name, recipe):
    """Most bytes while the model is made, those held in the second step as it says, and as a formula does.

    Fails if this rank has not its part of the whole model, as torch.chunk cuts, and zeros behind it.
    """
    strategy, config = parallel.load(name), small("float32", recipe=recipe, parallel=name, **SIZES)
    with Live() as live:
        trainer = train.Trainer(
            config, strategy, outline(config, SYMBOLS), TextData(TEXT, ALPHABET, config), torch.device("cpu")
        )
    whole = dict(build(config, SYMBOLS).named_parameters())
    for name, shard in trainer.shards.items():
        here, expected = sharding.local(shard.parameter.detach()), whole[name].detach()
        if shard.dimension is not None:
            expected = expected.chunk(world_size, shard.dimension)[rank]
            length = expected.shape[shard.dimension]
            here, behind = here.tensor_split([length], shard.dimension)
            assert not behind.any(), name
        assert torch.equal(here, expected), name
    for step in (1, 2):
        trainer.step(step, Losses())
    parameters = {name: sharding.local(shard.parameter) for name, shard in trainer.shards.items()}
    return live.most, trainer.held, sum(needed(recipe, name, each) for name, each in parameters.items())


def needed(recipe, name, parameter):
    """Bytes of a float32 parameter, its gradient, and what AdamW keeps: two moments, and its count of steps. Muon keeps
    one momentum."""
    by_muon = recipe == "fast" and name.startswith("blocks.") and parameter.dim() == 2
    return 12 * parameter.numel() if by_muon else 16 * parameter.numel() + 4


@pytest.fixture(scope="module", params=["plain", "fast"])
def ranks(request, tmp_path_factory):
    """ranks(strategy, world size) -> what `trained` found, by rank."""

    def start(name, world_size):
        worker = partial(trained, name=name, recipe=request.param)
        worker.__name__ = "trained"
        return spawn(worker, world_size, tmp_path_factory.mktemp(name))

    return start


def test_of_four_tensor_parallel_ranks_each_has_a_quarter(ranks):
    ((made, held, _),) = ranks("none", 1)
    weights = 4 * sum(p.numel() for p in build(small("float32", **SIZES), SYMBOLS).parameters())
    assert held > 3 * weights
    for part_made, part_held, expected in ranks("tp", 4):
        assert part_held == expected
        assert part_made < 0.4 * made
        assert part_held < 0.4 * held


def peak(rank, world_size, name, recipe):
    """The most bytes of tensors in two steps: parameters, gradients, the optimizer's state and activations."""
    config = small("float32", recipe=recipe, parallel=name, **SIZES)
    batches = TextData(TEXT, ALPHABET, config)
    with Live() as live:
        trainer = train.Trainer(config, parallel.load(name), outline(config, SYMBOLS), batches, torch.device("cpu"))
        for step in (1, 2):
            trainer.step(step, Losses())
    return live.most, trainer.held


@pytest.mark.parametrize("recipe", ["plain", "fast"])
def test_a_tensor_parallel_rank_never_has_as_much_as_one_process(tmp_path, recipe):
    """It has a quarter of the weights and of what layers keep inside; what is between them is whole."""
    found = {}
    for name, world_size in (("none", 1), ("tp", 4)):
        worker = partial(peak, name=name, recipe=recipe)
        worker.__name__ = "peak"
        (tmp_path / name).mkdir()
        found[name] = spawn(worker, world_size, tmp_path / name)
    ((whole, held),) = found["none"]
    assert whole > 1.2 * held, "more than what it holds between steps"
    for part, _ in found["tp"]:
        assert part < 0.4 * whole


@pytest.mark.parametrize("name", ["ddp", "tp-dtensor", "fsdp", "pp"])
def test_every_strategy_has_its_part_of_the_weights_and_counts_its_bytes(ranks, name):
    for _, held, expected in ranks(name, 2):
        assert held == expected


def gathered_at_once(rank, world_size, folder):
    """The most bytes that a rank gives rank 0 at once for a full checkpoint, beside the bytes of its parameters."""
    config = small("float32", parallel="tp", **SIZES)
    batches, given, gather = TextData(TEXT, ALPHABET, config), [], dist.gather_object
    trainer = train.Trainer(config, parallel.load("tp"), outline(config, SYMBOLS), batches, torch.device("cpu"))
    trainer.step(1, Losses())

    def spied(object, others):
        given.append(sum(tensor.nbytes for _, tensor in object.values()))
        gather(object, others)

    text = SimpleNamespace(sha256="", symbols=ALPHABET)
    with patch.object(dist, "gather_object", spied):
        path = checkpoint.save(folder, config, text, 1, (0.0, 0), trainer.shards, trainer.optimizer)
    whole = checkpoint.whole_parameters(path) if rank == 0 else {}
    parameters = sum(shard.part(shard.parameter).nbytes for shard in trainer.shards.values())
    return max(given), parameters, sorted(whole) == sorted(trainer.shards)


def test_a_full_checkpoint_is_gathered_a_moment_at_a_time(tmp_path):
    """Not parameters and both moments of AdamW at once."""
    worker = partial(gathered_at_once, folder=tmp_path / "checkpoints")
    worker.__name__ = "gathered_at_once"
    first, second = spawn(worker, 2, tmp_path)
    assert first == (first[1], first[1], True)
    assert second[0] < second[1], "replicated parameters come from rank 0"


def test_no_rank_has_the_whole_model_at_any_time_if_it_need_not(run):
    """Sharded checkpoints, and no sample."""
    program = "import train; train.build = None; train.main()"
    flags = ("--steps", 2, "--parallel", "tp", "--checkpoint", "sharded", "--sample-length", 0)
    folder, _ = run("run", *flags, world_size=2, program=program)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["sample"] == ""
    assert summary["parameters"] == sum(p.numel() for p in build(small("float32"), SYMBOLS).parameters())


@pytest.mark.parametrize(("units", "most"), [((), "1,048,576"), (("--one-unit",), "4,194,304")])
def test_the_lesson_sees_fsdp_gather_a_unit_at_a_time(units, most):
    """A layer has 1024 x 1024 parameters, the model four layers."""
    first, _ = succeed("fsdp", *units, world_size=2, program=LESSON)
    assert f"fsdp gathers at most {most} of 4,194,304 parameters at a time" in first.stdout
    assert "8.00   as predicted; 32.0 MiB" in first.stdout
