"""The exercises that `make grade` knows are those that the workspace's program checks."""

import re

import pytest

from harness.clusters import WORKSPACE
from slurmbed.cli import main as cli
from slurmbed.course.grade import FILES


def test_the_exercises_are_those_of_the_workspace():
    program = (WORKSPACE / "lessons" / "grade.py").read_text()
    listed = re.search(r"^EXERCISES = \{(.*)\}", program, re.MULTILINE)[1]
    assert ", ".join(f'"{lesson}": {name}' for lesson, name in FILES.items()) == listed
    assert {path.stem for path in (WORKSPACE / "exercises").glob("*.py")} == set(FILES.values())


def test_a_lesson_without_a_program_to_check_it_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.run(cli.make_group(), ("grade", "LESSON=5"))
    assert "is not one of '3', '4', '6'" in capsys.readouterr().err
