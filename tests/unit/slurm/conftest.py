"""Output that tests/recorded/record-slurm recorded, of each version of Slurm."""

from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.fixture(params=sorted(folder.name for folder in RECORDED.glob("slurm-*")))
def recorded(request) -> Callable[[str], str]:
    """The text of a recorded file, of one version after another."""
    return lambda name: (RECORDED / request.param / name).read_text()
