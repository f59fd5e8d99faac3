"""What mnist.py trains: a small convolutional network, and the precision it runs in.

Legend: B images in a batch.
"""

from pathlib import Path

import torch
from torch import nn

from mnist_data import CLASSES

DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# A CPU that multiplies in bfloat16 says so in one of these words: x86's two, Arm's one.
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


class AmpError(ValueError):
    """The precision that was asked for cannot be had."""


def build(seed):
    """Two convolutions and two linear layers: [B, 1, 28, 28] -> logits [B, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),  # [B, 16, 14, 14]
        *(nn.Conv2d(16, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),  # [B, 32, 7, 7]
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    )


def choose_amp(wanted, device_type, cpu_flags):
    """off, bf16 or fp16. AmpError if it cannot be had.

    `auto` takes bf16 on a CPU that has instructions to multiply in it: there an epoch takes two thirds of the time or
    less, and elsewhere more, because torch converts back and forth.
    """
    if wanted == "fp16" and device_type == "cpu":
        raise AmpError("--amp fp16 is for GPUs, and this rank computes on a CPU: use --amp bf16, or auto")
    if wanted != "auto":
        return wanted
    if device_type == "cuda":
        return "fp16"
    return "bf16" if cpu_flags & BF16_FLAGS else "off"


def read_cpu_flags(file=Path("/proc/cpuinfo")):
    return set(file.read_text().split()) if file.exists() else set()
