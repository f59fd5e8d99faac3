"""`make mutate`: does a test fail for each mistake of mutations.yaml? What no test finds is printed."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from dev import node_image
from slurmbed.cli.console import console, say
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import last_lines, run
from slurmbed.project import ROOT

MUTATIONS = Path(__file__).with_name("mutations.yaml")
TESTS = "tests/training"
LIMIT = 900  # seconds for the tests of a mutation
PASSED, FAILED = 0, 1  # exit statuses of pytest; others say that it could not run the tests


@dataclass(frozen=True)
class Mutation:
    """A mistake in a file of workspace/, and the test that must fail for it."""

    name: str
    file: str
    find: str
    put: str
    test: str
    short: bool = False

    def mutated(self) -> str:
        """The file with the mistake.

        Raises:
            SlurmbedError: the text is not there once, or what comes out is no Python.
        """
        text = (ROOT / "workspace" / self.file).read_text()
        if text.count(self.find) != 1:
            raise SlurmbedError(f"{self.name}: {self.file} has {text.count(self.find)} times, not once: {self.find!r}")
        text = text.replace(self.find, self.put)
        try:
            compile(text, self.file, "exec")
        except SyntaxError as error:
            raise SlurmbedError(f"{self.name}: {self.file} would be no Python: {error}") from None
        return text


def mutations() -> list[Mutation]:
    return [Mutation(**each) for each in yaml.safe_load(MUTATIONS.read_text())]


@click.command()
@click.option("--only", default="", help="mutations whose name has these words [default: all]")
@click.option("--short", is_flag=True, help="those that `make test` makes: no first run without a mutation")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="at a time")
def mutate(only: str, short: bool, jobs: int) -> None:
    """Make each mistake of dev/mutations.yaml in a copy, and run its test. The exit status is 1 if one is not found."""
    chosen = [each for each in mutations() if only in each.name and (each.short or not short)]
    if not chosen:
        raise UsageError(f"no mutation has {only!r} in its name", f"see {MUTATIONS.relative_to(ROOT)}")
    node = node_image.built()
    if not short:
        check_unmutated(node, sorted({each.test for each in chosen}))
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda each: is_found(node, each), chosen)
        survivors = [each for each, is_known in zip(chosen, found, strict=True) if not is_known]
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations were found by their test")
    for each in survivors:
        console.print(f"SURVIVED: {each.name} ({each.file}), {each.test}", markup=False, highlight=False)
    sys.exit(1 if survivors else 0)


def check_unmutated(node: str, tests: Sequence[str]) -> None:
    """Run the tests as the sources are: a test that fails anyway finds nothing."""
    say(f"{len(tests)} tests without a mutation")
    with copy() as source:
        run(node_image.pytest(node, source, source.name, *(f"{TESTS}/{each}" for each in tests)), timeout=LIMIT).check()


def is_found(node: str, mutation: Mutation) -> bool:
    """Whether the test fails for the mutation.

    Raises:
        SlurmbedError: the mutation could not be made, or the test not be run.
    """
    began = time.monotonic()
    with copy() as source:
        (source / "workspace" / mutation.file).write_text(mutation.mutated())
        done = run(node_image.pytest(node, source, source.name, "-x", f"{TESTS}/{mutation.test}"), timeout=LIMIT)
    if done.returncode not in (PASSED, FAILED):
        raise SlurmbedError(f"{mutation.name}: {mutation.test} could not be run\n{last_lines(done.output)}")
    found = done.returncode == FAILED
    say(f"{'found' if found else 'SURVIVED'}  {mutation.name}  ({time.monotonic() - began:.0f} s)")
    return found


@contextmanager
def copy() -> Iterator[Path]:
    """A copy of what the training tests need, which the user of the node image can read."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        source = Path(folder)
        source.chmod(0o755)
        for name in ("workspace", TESTS, "tests/recorded"):
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "runs", "data"))
        shutil.copy(ROOT / "pyproject.toml", source)
        yield source
