"""`make test`: what its suites have, and that cluster tests which failed run once more, alone."""

import sys
from pathlib import Path

import pytest

from dev import suites, testrun
from slurmbed.process import run

TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_passes_{when}(number):
    seen = pathlib.Path(f"seen-{{number}}")
    known = seen.exists()
    seen.touch()
    assert known and {again}
"""

OTHERS = """
import pathlib

def test_of_a_file_without_failures_is_not_run_again():
    seen = pathlib.Path("ran")
    assert not seen.exists()
    seen.touch()
"""


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Run tests, of which so many fail, as `make test` does: first(count, again) -> the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(suites, "LAST_FAILED", tmp_path / ".pytest_cache/v/cache/lastfailed")
    Path("pytest.ini").write_text("[pytest]\n")

    def first(count: int, again: bool) -> list[str]:
        Path("test_others.py").write_text(OTHERS)
        Path("test_few.py").write_text(TESTS.format(count=count, when="later" if again else "never", again=again))
        words = [sys.executable, "-m", "pytest", str(tmp_path), *suites.SIDE_BY_SIDE]
        assert run(words, timeout=120).returncode == suites.TESTS_FAILED
        return words

    return first


def test_what_passes_alone_is_named(first, capsys):
    assert suites.alone(first(2, again=True)) == 0
    assert "passed alone: test_few.py::test_passes_later[0], test_few.py::test_passes_later[1]" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_fails_alone_too_has_failed(first):
    assert suites.alone(first(1, again=False)) == suites.TESTS_FAILED


def test_many_failures_are_no_chance(first):
    words = first(suites.FEW + 1, again=True)
    assert suites.alone(words) == suites.TESTS_FAILED
    assert suites.alone(words) == suites.TESTS_FAILED, "nothing has been run again"


def test_the_clusters_of_a_suite_have_what_it_says_and_no_others(monkeypatch):
    monkeypatch.setenv(testrun.SLURM, "24.11")
    monkeypatch.delenv(testrun.FLAVOR, raising=False)
    with suites.variables(suites.CHOSEN["newest"]):
        assert testrun.chosen() == {"slurm": "26.05", "flavor": "slim"}
    assert testrun.chosen() == {"slurm": "24.11", "flavor": None}
