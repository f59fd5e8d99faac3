"""Lint is a test like any other: what it says is the failure."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# In Python, with names that do not say so.
PROGRAMS = (
    *("scripts/containers/container-image", "scripts/containers/container-start", "scripts/containers/enroot"),
    *("scripts/check-torch", "scripts/nvidia-smi", "scripts/seff", "scripts/wait-ready"),
    *("tests/recorded/record-runs", "tests/recorded/record-slurm"),
)


def shell_scripts() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [
        name for name in files if (ROOT / name).read_bytes()[:20].startswith((b"#!/bin/bash", b"#!/usr/bin/env bash"))
    ]


def lint(*argv: str) -> None:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_check():
    lint(BIN / "ruff", "check", ".", *PROGRAMS)


def test_ruff_format():
    lint(BIN / "ruff", "format", "--check", ".", *PROGRAMS)


def test_types():
    lint(BIN / "mypy", "--no-incremental")


def test_no_module_imports_from_a_test_or_a_conftest():
    """What tests share is in a module beside them: several folders have a conftest, and tests are no library."""
    imports = re.compile(r"^\s*(?:from|import) (?:\w+\.)*(?:test_\w+|conftest)\b.*", re.MULTILINE)
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert len(modules) > 100
    assert {name: found for name, text in modules.items() if (found := imports.findall(text))} == {}


def test_shellcheck():
    scripts = shell_scripts()
    assert {"scripts/entrypoint", "scripts/engine", "workspace/jobs/tp.sbatch", ".ci/run"} <= set(scripts)
    lint(BIN / "shellcheck", "--external-sources", "--source-path=workspace", *scripts)


def test_hadolint():
    # DL3008: versions are the suite's, chosen with SLURM=. DL3009: the lists are in a cache mount.
    # DL3015: recommended packages are switched off for all of apt.
    ignored = [word for rule in ("DL3008", "DL3009", "DL3015") for word in ("--ignore", rule)]
    lint(BIN / "hadolint", *ignored, "Dockerfile")
