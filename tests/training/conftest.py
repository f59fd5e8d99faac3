"""The training tests: small models, a text made here, processes on one host. They need torch: the node image."""

import random
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parents[1] / "workspace"
sys.path[:0] = [str(WORKSPACE), str(HERE)]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """4,000 characters of made-up words; 27 symbols, which neither 2 nor 4 ranks divide."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 7))) for _ in range(60)]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(draw.choice(words) for _ in range(2000))[:4000])
    assert len(set(path.read_text())) == 27
    return path
