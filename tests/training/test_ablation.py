"""The ablation of the lesson on the fast recipe: it trains what train.py trains, and each row is another model."""

import json
from functools import partial

import pytest

from gpt import data
from lessons.ablation import ROWS, loss_of
from processes import spawn

SMALL = {"layers": 2, "channels": 32, "steps": 12, "seed": 3}


def losses(path, rank, world_size):
    text = data.load(path)
    return {row: loss_of(row, text, **SMALL) for row in ROWS}, loss_of("everything", text, **SMALL)


@pytest.fixture(scope="module")
def found(text_file, tmp_path_factory):
    """The loss of each row, and that of everything once more, after all others."""
    return spawn(partial(losses, str(text_file)), 1, tmp_path_factory.mktemp("ablation"))[0]


def test_everything_is_the_recipe_of_train_py(found, run):
    flags = {**SMALL, "recipe": "fast", "batch_size": 16, "warmup": 10, "block_size": 64, "eval_every": 12}
    folder, _ = run("fast", *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()))
    assert json.loads((folder / "summary.json").read_text())["val_loss"] == pytest.approx(
        found[0]["everything"], abs=1e-6
    )


def test_each_row_is_another_model_and_leaves_nothing_behind(found):
    rows, again = found
    assert len({round(loss, 5) for loss in rows.values()}) == len(ROWS)
    assert again == rows["everything"]
