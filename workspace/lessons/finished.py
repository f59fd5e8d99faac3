"""Finds the runs that losses.py, lanes.py and shards.py show, by what they were: tp, ddp/unsynced, or a job's id."""

import json
import sys
from pathlib import Path

RUNS = Path(__file__).resolve().parent.parent / "runs"
# What must be equal in runs whose losses are compared.
ALIKE = ("recipe", "layers", "channels", "heads", "block_size", "batch_size", "steps", "log_every", "seed", "optimizer")


def find(names):
    """[(name, folder, summary)]: the newest finished run of each name. Ends the program if there is none."""
    known = []
    for path in sorted(RUNS.glob("*/summary.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        summary = json.loads(path.read_text())
        if "parallel" in summary["config"]:  # train_mnist.py has other knobs
            config = summary["config"]
            known.append((config["parallel"] + "/" * bool(config["break_"]) + config["break_"], path.parent, summary))
    found = [next((run for run in known if name in (run[0], run[1].name)), None) for name in names]
    if None in found:
        sys.exit(f"no finished run of {names[found.index(None)]} in {RUNS}; there are {[run[0] for run in known]}")
    return [(name, *run[1:]) for name, run in zip(names, found, strict=True)]


def comparable(runs):
    """Ends the program if runs were not given the same work."""
    first = runs[0][2]
    for name, _, summary in runs[1:]:
        for knob in ALIKE:
            a, b = first["config"][knob], summary["config"][knob]
            if a != b:
                sys.exit(f"not comparable: {runs[0][0]} had {knob} {a}, {name} had {b}; run one of them again")
        if first["text"]["sha256"] != summary["text"]["sha256"]:
            sys.exit(f"not comparable: {runs[0][0]} and {name} read different texts; run one of them again")
