"""What train_mnist.py trains: a small convolutional network, and the precision it runs in.

Legend: B images in a batch.
"""

import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from mnist.data import CLASSES, SIDE

DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TRIAL_LIMIT = 120  # seconds


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


def choose_amp(wanted, device_type, batches):
    """off, bf16 or fp16; `batches`: the numbers of images that this rank works on. AmpError if it cannot be had.

    `auto` is fp16 on a GPU and off on a CPU: whether a CPU is quicker in bf16, or can do it at all, depends on the
    CPU and on how torch was built, and what the CPU says of itself does not tell.
    """
    if wanted == "fp16" and device_type == "cpu":
        raise AmpError("--amp fp16 is for GPUs, and this rank computes on a CPU: use --amp bf16, or off")
    if wanted == "auto":
        return "fp16" if device_type == "cuda" else "off"
    if wanted == "bf16" and device_type == "cpu":
        try_on_cpu(wanted, batches)
    return wanted


def try_on_cpu(amp, batches):
    """A forward and backward of each size in a process of its own. AmpError, with what became of it, if it fails.

    Some builds of oneDNN end with SIGILL in bf16 on some CPUs: the process is gone, and nothing can be caught.
    """
    program = f"from mnist import model; [model.forward_and_backward({amp!r}, images) for images in {list(batches)}]"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[1],
            check=False,
            capture_output=True,
            text=True,
            timeout=TRIAL_LIMIT,
        )
        code, last = done.returncode, (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        code, last = 1, f"no end after {TRIAL_LIMIT} s"
    if code:
        why = f"it was ended by {signal.Signals(-code).name}" if code < 0 else last
        raise AmpError(f"--amp {amp}: torch cannot train in it on this CPU, {why}; use --amp off")


def forward_and_backward(amp, images):
    """One step's computation on a CPU in a precision, on a batch of zeros."""
    network = build(0).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", DTYPES[amp]):
        logits = network(torch.zeros(images, 1, SIDE, SIDE).to(memory_format=torch.channels_last))
    nn.functional.cross_entropy(logits.float(), torch.zeros(images, dtype=torch.long)).backward()
