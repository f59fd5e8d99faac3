"""Clusters of the tests' own. A user's cluster, and a user's workspace, are never touched."""

import shutil
from collections.abc import Callable
from pathlib import Path

from harness import internals
from harness.internals import ROOT
from slurmbed import Cluster

WORKSPACE = ROOT / "workspace"
# A path inside the workspace. Each training evaluates a tenth of its text: of Shakespeare that takes longer than the
# training. Of the 29 symbols no rank has as many as the others.
TEXT = "data/short.txt"


def make_cluster(name: str, say: Callable[[str], None] = print, **settings: object) -> Cluster:
    """A ``Cluster`` with settings like ``nodes=2``; nothing is started."""
    return Cluster(internals.settings(name, **settings), say)


def copy_of_workspace(folder: Path) -> Path:
    """So that runs and job ids of a test's cluster never meet the user's, or another's. It has a short text."""
    workspace = shutil.copytree(WORKSPACE, folder / "workspace", ignore=written_by_jobs, symlinks=True)
    (workspace / TEXT).write_text("the quick brown fox jumps over the lazy dog.\n" * 500)
    return workspace


def written_by_jobs(folder: str, names: list[str]) -> list[str]:
    if Path(folder) == WORKSPACE:
        return [name for name in names if name in ("log", "logs", "checkpoints")]
    return [name for name in names if name != ".gitignore"] if Path(folder).name == "runs" else []
