"""`make launchers`, on the smallest cluster that has GPUs in name."""

import re
import shutil

from harness.clusters import TEXT
from harness.commands import make


def test_it_ends_with_a_table(faulty, faulty_workspace):
    shutil.copy(faulty_workspace / TEXT, faulty_workspace / "data" / "tiny-shakespeare.txt")  # to train on
    done = make("launchers", f"NAME={faulty.name}", "ONLY=multiprocessing", COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr
    said = r"multiprocessing: 1 x 2 ranks, placement proved, \d+\.\d s to the first sum, loss \d\.\d{6}"
    assert re.search(said, done.stdout)
    assert re.search(r"│ multiprocessing │ Python .* │ +\d+ │ nothing +│", done.stdout)
