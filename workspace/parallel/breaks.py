"""The classic mistakes of parallel training, to be made on purpose: `train.py --break missing-f`.

Each is a sentence, the place it goes to, and what stands there instead. The lessons in README.md show what some do; the
tests prove that the checks find each.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from parallel import none, tp_layers
from ranks.communication import all_reduce
from ranks.sharding import local


@dataclass(frozen=True)
class Break:
    says: str
    strategies: tuple[str, ...]  # where it shows
    module: str  # of parallel/
    attribute: str  # dotted, within the module
    instead: Any

    def target(self):
        """The object and the name of its attribute to replace."""
        place = importlib.import_module(f"parallel.{self.module}")
        *path, name = self.attribute.split(".")
        for each in path:
            place = getattr(place, each)
        return place, name

    def apply(self):
        setattr(*self.target(), self.instead)


class Nothing:
    apply = staticmethod(lambda x, group: x)


class ReducesTwice(tp_layers.ReduceFromRanks):
    @staticmethod
    def backward(context, dy):
        return all_reduce(dy, "backward"), None


def early_bias(self, x):
    return tp_layers.ReduceFromRanks.apply(F.linear(x, self.weight, self.bias), self.group)


def local_mean(model, tokens, targets, count):
    return none.mean_loss(model, tokens, targets, targets.numel() * model.process_group.size())


def mean_of_microbatch(stage, logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def all_forward_first(*arguments, **options):
    from torch.distributed.pipelining import ScheduleGPipe  # takes a second, which others need not wait for

    return ScheduleGPipe(*arguments, **options)


BREAKS = {
    "missing-f": Break(
        "f left out: a rank's gradient is of its own columns only",
        ("tp",),
        "tp_layers",
        "CopyToRanks",
        Nothing,
    ),
    "double-g": Break(
        "g sums in backward too: the gradient counts every rank twice",
        ("tp",),
        "tp_layers",
        "ReduceFromRanks",
        ReducesTwice,
    ),
    "early-bias": Break(
        "the row bias is added before the sum: it counts once for each rank",
        ("tp",),
        "tp_layers",
        "RowParallelLinear.forward",
        early_bias,
    ),
    "local-clip": Break(
        "each rank clips by the norm of what it holds: replicas drift apart",
        ("tp",),
        "tp",
        "gradient_norm",
        none.gradient_norm,
    ),
    "unmasked-padding": Break(
        "rows that only fill up the vocabulary take part in the softmax",
        ("tp",),
        "tp_layers",
        "mask_padding",
        lambda logits, first, symbols: logits,
    ),
    "unsynced": Break(
        "gradients are never summed: every rank trains a model of its own",
        ("ddp",),
        "ddp",
        "backward",
        lambda model, tokens, targets, count, last: unsynced(model, tokens, targets, count),
    ),
    "local-mean": Break(
        "each rank averages over its own share: with unequal shares tokens count unequally",
        ("ddp",),
        "ddp",
        "mean_loss",
        local_mean,
    ),
    "same-share": Break(
        "every rank takes the first share: the rest of the batch is never seen",
        ("ddp",),
        "ddp",
        "local_batch",
        lambda model, *batch: tuple(each.tensor_split(model.process_group.size())[0] for each in batch),
    ),
    "unscaled-microbatches": Break(
        "each microbatch's loss is its own mean: M of them add up to a gradient M times too large",
        ("pp",),
        "pp_stage",
        "Stage.loss",
        mean_of_microbatch,
    ),
    "stage-clip": Break(
        "each stage clips by the norm of its own gradient: stages learn at different rates",
        ("pp",),
        "pp",
        "gradient_norm",
        none.gradient_norm,
    ),
    "all-forward-first": Break(
        "no stage goes backward before all microbatches went forward: the activations of all are kept, not of a few",
        ("pp",),
        "pp",
        "Schedule1F1B",
        all_forward_first,
    ),
    "averaged-twice": Break(
        "the loss is a mean over the whole batch, and the wrapper averages it over ranks again",
        ("fsdp",),
        "fsdp",
        "backward",
        none.backward,
    ),
    "local-norm": Break(
        "each rank clips by the norm of what it holds: replicas drift apart",
        ("tp-dtensor",),
        "tp_dtensor",
        "gradient_norm",
        lambda model: get_total_norm([local(parameter.grad) for parameter in model.parameters()]),
    ),
}


def unsynced(model, tokens, targets, count):
    with model.no_sync():
        loss = none.mean_loss(model, tokens, targets, count)
        loss.backward()
    return loss.detach()


def make(name, parallel):
    """Make the mistake in this process. ValueError if there is none of that name, or if it is another strategy's."""
    if name not in BREAKS:
        raise ValueError(f"--break {name} is not known; there are {', '.join(BREAKS)}")
    if parallel not in BREAKS[name].strategies:
        raise ValueError(f"--break {name} is a mistake of --parallel {' or '.join(BREAKS[name].strategies)}")
    BREAKS[name].apply()
