"""What the ranks of the tests need, imported once, by the process that they are forked from.

torch imports its compiler when an optimizer is made, and more when a strategy wraps a model: seconds of CPU time, which
every rank would pay.
"""

import gc
import os
from importlib import import_module

from parallel import STRATEGIES

for name in (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    *("train", "train_mnist", "measure.bubble", "measure.collectives"),
    *(f"parallel.{name.replace('-', '_')}" for name in STRATEGIES),
):
    import_module(name)

threads = len(os.listdir("/proc/self/task"))
assert threads == 1, f"{threads} threads, but only one survives a fork"
gc.collect()
gc.freeze()  # a collection in a rank would write to every page of what is here, and so copy it
