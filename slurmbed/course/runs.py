"""A training run, seen from the host: the files that its job writes to the workspace, and their contents."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from slurmbed.course import files
from slurmbed.errors import SlurmbedError
from slurmbed.slurm.placement import Placed

# As in workspace/parallel/__init__.py, which the host must not run, because jobs can write there.
STRATEGY_NAMES = {
    "none": "one process",
    "ddp": "data parallel",
    "tp": "tensor parallel",
    "tp-dtensor": "tensor parallel by DTensor",
    "fsdp": "data parallel with sharded parameters",
    "pp": "pipeline parallel",
    "hybrid": "data and tensor parallel",
}
CLOCK_TOLERANCE = 2  # seconds: timestamps of files may be rounded, and another machine's clock may be behind this one's


def now() -> float:
    """The time to give to ``Run`` as ``since``, taken before the job is submitted; in seconds since 1970."""
    return time.time() - CLOCK_TOLERANCE


@dataclass(frozen=True)
class RunResult:
    """The results of a finished run of train.py.

    Attributes:
        summary: summary.json.
        metrics: the lines of metrics.jsonl.
        placed: its ranks, each with the node it ran on.
        timeline: timeline.json; None if the run recorded none.
    """

    summary: dict
    metrics: list[dict]
    placed: list[Placed]
    timeline: dict | None = None

    @property
    def strategy(self) -> str:
        """Its name, as in --parallel."""
        return self.summary["config"]["parallel"]

    @property
    def title(self) -> str:
        """Like "tensor parallel over 2 ranks"."""
        ranks = self.summary["world_size"]
        return STRATEGY_NAMES.get(self.strategy, self.strategy) + (f" over {ranks} ranks" if ranks > 1 else "")

    @property
    def transports(self) -> str:
        """What carried the collectives and messages of its ranks, like "gloo and socket"; empty if there were none."""
        return " and ".join(self.summary["transports"])

    @property
    def megabytes(self) -> str:
        """What a rank holds of parameters, gradients and optimizer state, in MB: the smallest and the largest."""
        return spanned([each["held"] for each in self.summary["memory"]])

    @property
    def gpu_megabytes(self) -> str:
        """The most that a rank had on its GPU at a time, in MB, as ``megabytes``; empty without GPUs."""
        return spanned([each["peak"] for each in self.summary["memory"] if each["peak"] is not None])

    @property
    def nodes(self) -> int:
        """Number of nodes it ran on."""
        return len({item.slurm_node for item in self.placed})


def spanned(sizes: list[int]) -> str:
    """Bytes in MB, the smallest and the largest, like "5.1" or "1.0 to 3.5"; empty if there are none."""
    return " to ".join(dict.fromkeys(f"{size / 1e6:.1f}" for size in (min(sizes), max(sizes)))) if sizes else ""


class Run:
    """One job's files in the workspace: the folder runs/ID and the log runs/ID.log.

    Job ids begin at 1 again on a new cluster. Files of an earlier job with the same id stay until this job sets them
    aside, so a file counts as missing if it was last written before ``since``.

    Args:
        workspace: the folder of the host that is /workspace in the cluster.
        job_id: Slurm's id of the job.
        since: what ``now`` returned before the job was submitted.
    """

    def __init__(self, workspace: Path, job_id: str, since: float = 0.0):
        self.workspace, self.job_id, self.since = workspace, job_id, since
        self.folder = workspace / "runs" / job_id
        self.log_file = workspace / "runs" / f"{job_id}.log"

    def read(self, name: str) -> str | None:
        """The text of a file in the run's folder; None if the job has not written it. Raises as ``files.read``."""
        return files.read(self.workspace, f"runs/{self.job_id}/{name}", self.since)

    def log(self) -> str:
        """The job's log; empty if there is none yet. Raises as ``files.read``."""
        return files.read(self.workspace, f"runs/{self.job_id}.log", self.since) or ""

    def metrics(self) -> list[dict]:
        """The lines of metrics.jsonl, without a last one that is only half written."""
        lines = (self.read("metrics.jsonl") or "").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def results(self, name: str) -> dict:
        """The content of a JSON file in the run's folder. SlurmbedError if the job has not written it."""
        text = self.read(name)
        if text is None:
            raise SlurmbedError(f"job {self.job_id} has not written {self.folder / name}", f"its log: {self.log_file}")
        return json.loads(text)

    def summary(self) -> dict:
        """summary.json, which a run writes at its end. Raises as ``results``."""
        return self.results("summary.json")

    def result(self, placed: list[Placed]) -> RunResult:
        """The results of the finished run. Raises as ``results``."""
        timeline = self.read("timeline.json")
        return RunResult(self.summary(), self.metrics(), placed, json.loads(timeline) if timeline else None)


def unused_folder(workspace: Path, name: str) -> str:
    """A folder's path from the workspace: runs/NAME, or runs/NAME-2 and so on if that is taken."""
    with files.opened(workspace, "runs") as runs:
        taken = set(os.listdir(runs)) if runs is not None else set()
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return f"runs/{found}"
