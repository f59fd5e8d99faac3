"""The report holds what people look for, and its pictures are drawn."""

import base64
import re

from slurmbed.parse import Rank
from slurmbed.report import write_report
from slurmbed.slurm import Placed

SUMMARY = {
    "text": {"name": "plays", "characters": 1000, "symbols": 65, "source": "a file"},
    "parameters": 800_000,
    "val_loss": 1.875,
    "train_loss": 1.7,
    "steps": 20,
    "tokens_per_s": 9000.0,
    "torch": "2.6.0",
    "threads": 1,
    "world_size": 2,
    "communication_share": 0.4,
    "sample": "<b>KING:</b>",
}
METRICS = [
    {"step": 10, "train_loss": 2.0, "val_loss": None},
    {"step": 20, "train_loss": 1.7, "val_loss": 1.875},
]


def test_report(tmp_path):
    placed = [
        Placed(Rank(i, 2, 0, f"node-{i + 1}", f"node-{i + 1}", "7", f"half {i}"), f"node-{i + 1}") for i in (0, 1)
    ]
    page = write_report(tmp_path, SUMMARY, METRICS, placed, "make train STEPS=20").read_text()
    assert "Job 7" in page
    assert "make train STEPS=20" in page
    assert "1.875" in page
    assert "plays (1,000 characters" in page
    assert "<td>1</td><td>node-2</td><td>node-2</td><td>half 1</td>" in page
    assert "&lt;b&gt;KING:" in page
    pictures = re.findall(r"base64,([^\"]+)", page)
    assert len(pictures) == 2
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
