"""The training tests: small models, a text made here, processes on one host. They need torch: the node image."""

import random
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parents[1] / "workspace"
sys.path[:0] = [str(HERE / "helpers"), str(WORKSPACE)]


@pytest.fixture(scope="session")
def workspace():
    """The folder of the programs, which the tests import too."""
    return WORKSPACE


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """4,000 characters of made-up words; 27 symbols, which neither 2 nor 4 ranks divide."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 7))) for _ in range(60)]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(draw.choice(words) for _ in range(2000))[:4000])
    assert len(set(path.read_text())) == 27
    return path


@pytest.fixture
def run(text_file, tmp_path):
    """A small run of train.py: run(name, flags...) -> the folder that it wrote, and its ranks."""
    from processes import succeed
    from small_runs import QUICK

    def start(name, *arguments, how=succeed, **options):
        folder = tmp_path / name
        return folder, how(*QUICK, "--text", text_file, "--run-dir", folder, *arguments, **options)

    yield start
    assert not (WORKSPACE / "data" / text_file.name).exists(), "a run must not copy its text"


@pytest.fixture(scope="session")
def uninterrupted(text_file, tmp_path_factory):
    """uninterrupted(flags...) -> the folder of a small run that nothing stops; runs of the same flags are made once."""
    from processes import succeed
    from small_runs import QUICK

    folders = {}

    def start(*arguments, world_size=1):
        key = (*arguments, world_size)
        if key not in folders:
            folder = tmp_path_factory.mktemp("uninterrupted")
            succeed(*QUICK, "--text", text_file, "--run-dir", folder, *arguments, world_size=world_size)
            folders[key] = folder
        return folders[key]

    return start
