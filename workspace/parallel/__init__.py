"""The strategies of `train.py --parallel`, in one table."""

from importlib import import_module

# Name: what it does. The module has the same name, with _ for -.
STRATEGIES = {
    "none": "one process",
    "ddp": "data",
    "tp": "tensor, by hand",
    "tp-dtensor": "tensor, by torch",
    "fsdp": "data, with sharded parameters",
    "pp": "pipeline",
    "hybrid": "data x tensor",
}


def load(name):
    """The module of a strategy: the functions of none.py, in its order."""
    return import_module(f"parallel.{name.replace('-', '_')}")
