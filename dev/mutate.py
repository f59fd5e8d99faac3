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
TESTS = {"workspace": "tests/training", "slurmbed": "tests/unit"}  # of the programs in a folder
LIMIT = 900  # seconds for the tests of a mutation
ALL_LIMIT = 3600  # seconds for all tests without one
PASSED, FAILED = 0, 1  # exit statuses of pytest; others say that it could not run the tests


@dataclass(frozen=True)
class Mutation:
    """A mistake in a file of workspace/ or slurmbed/, and the test that must fail for it."""

    folder: str
    name: str
    file: str
    find: str
    put: str
    test: str
    short: bool = False

    @property
    def path(self) -> str:
        """The file, in the repository."""
        return f"{self.folder}/{self.file}"

    @property
    def test_path(self) -> str:
        """The test, in the repository, in pytest's words."""
        return f"{TESTS[self.folder]}/{self.test}"

    def mutated(self) -> str:
        """The file with the mistake.

        Raises:
            SlurmbedError: the text is not there once, or what comes out is no Python.
        """
        text = (ROOT / self.path).read_text()
        if text.count(self.find) != 1:
            raise SlurmbedError(f"{self.name}: {self.file} has {text.count(self.find)} times, not once: {self.find!r}")
        text = text.replace(self.find, self.put)
        try:
            compile(text, self.file, "exec")
        except SyntaxError as error:
            raise SlurmbedError(f"{self.name}: {self.file} would be no Python: {error}") from None
        return text


def mutations() -> list[Mutation]:
    lists = yaml.safe_load(MUTATIONS.read_text())
    return [Mutation(folder, **each) for folder in lists for each in lists[folder]]


@click.command()
@click.option("--only", default="", help="mutations whose file or name has these words [default: all]")
@click.option("--short", is_flag=True, help="those that `make test` makes: no first run without a mutation")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="at a time")
def mutate(only: str, short: bool, jobs: int) -> None:
    """Make each mistake of dev/mutations.yaml in a copy, and run its test. The exit status is 1 if one is not found."""
    chosen = [each for each in mutations() if only in f"{each.path}: {each.name}" and (each.short or not short)]
    if not chosen:
        raise UsageError(f"no mutation has {only!r} in its file or name", f"see {MUTATIONS.relative_to(ROOT)}")
    node = node_image.built() if any(each.folder == "workspace" for each in chosen) else ""
    if not short:
        for folder in TESTS:
            check_unmutated(node, folder, sorted({each.test_path for each in chosen if each.folder == folder}))
    with ThreadPoolExecutor(jobs) as pool:
        whys = list(pool.map(lambda each: why_not_found(node, each), chosen))
    left = [(each, why) for each, why in zip(chosen, whys, strict=True) if why]
    console.print(f"{len(chosen) - len(left)} of {len(chosen)} mutations were found by their test")
    for each, why in left:
        console.print(f"{why}: {each.name} ({each.path}), {each.test_path}", markup=False, highlight=False)
    sys.exit(1 if left else 0)


def check_unmutated(node: str, folder: str, tests: Sequence[str]) -> None:
    """Run tests as the sources are: a test that fails anyway finds nothing."""
    if tests:
        say(f"{len(tests)} tests of {folder}/ without a mutation")
        with copy() as source:
            run(pytest(node, folder, source, *tests), timeout=ALL_LIMIT).check()


def why_not_found(node: str, mutation: Mutation) -> str:
    """Why the test has not found the mutation; empty if it has."""
    began = time.monotonic()
    try:
        with copy() as source:
            (source / mutation.path).write_text(mutation.mutated())
            done = run(pytest(node, mutation.folder, source, "-x", mutation.test_path), timeout=LIMIT)
    except SlurmbedError as error:
        why = f"NO RESULT, {error.reason}"
    else:
        why = {PASSED: "SURVIVED", FAILED: ""}.get(done.returncode, f"NO RESULT, {last_lines(done.output, 1).strip()}")
    say(f"{why or 'found'}  {mutation.name}  ({time.monotonic() - began:.0f} s)")
    return why


def pytest(node: str, folder: str, source: Path, *arguments: str) -> list[str]:
    """The command that runs tests of the programs in a folder of a copy: in a node's image, or on this machine."""
    if folder == "workspace":
        return node_image.pytest(node, source, source.name, *arguments)
    return ["env", "--chdir", str(source), sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]


@contextmanager
def copy() -> Iterator[Path]:
    """A copy of the repository, without what git ignores, which the user of the node image can read."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        source = Path(folder)
        source.chmod(0o755)
        skipped = shutil.ignore_patterns(".*", "__pycache__", "runs", "data")
        shutil.copytree(ROOT, source, ignore=skipped, dirs_exist_ok=True)
        yield source
