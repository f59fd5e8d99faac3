"""The page of lessons: all there, naming nothing that does not exist, and its promises can be broken."""

import importlib
import re
import sys

import pytest

from harness.lessons import PAGE, WORKSPACE, Command, read

INTRODUCTION, *LESSONS = read(PAGE.read_text())
PROGRAMS = {"train.py", "measure.bubble"}  # they take the flags of config.py


def test_ten_lessons_in_order():
    titles = [lesson.title for lesson in LESSONS]
    assert [title.partition(". ")[0] for title in titles] == [str(number) for number in range(1, 11)]
    assert [command.typed for command in INTRODUCTION.commands] == [f"export QUICK='{quick()}'"]


def quick() -> str:
    return re.search(r"export QUICK='(.*)'", INTRODUCTION.text)[1]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)
def test_a_lesson_has_all_its_parts(lesson):
    right = [command for command in lesson.commands if not command.may_fail]
    wrong = [command for command in lesson.commands if command.may_fail]
    assert max(len(command.promised) for command in right) >= 3, "a table or a picture has some lines"
    assert any(command.promised for command in wrong), "the break says what is then seen"
    assert "**Break it.**" in lesson.text
    assert "\n**Read** " in lesson.text
    assert lesson.text.startswith("\n**Time:** ")
    assert "**Goal:** " in lesson.text
    exercise = lesson.text.partition("\n**Exercise.** ")[2]
    assert "\n<details><summary>Answer</summary>\n\n" in exercise
    assert lesson.text.count("\n") < 105, "a page or two"


def test_files_and_names_exist():
    named = re.findall(r"`([\w/.-]+\.(?:py|sbatch|sh))`(?: \(([^)]*)\))?", PAGE.read_text())
    assert len(named) > 20
    for file, names in named:
        content = (WORKSPACE / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", content), f"{file} has no {name}"


def test_what_is_started_exists_and_takes_its_flags(monkeypatch):
    monkeypatch.syspath_prepend(WORKSPACE)
    config = importlib.import_module("gpt.config")
    for name in ("gpt", "gpt.config", "parallel"):  # others of these names may be imported elsewhere
        monkeypatch.delitem(sys.modules, name)
    knobs = {config.flag(name) for name in config.Config.__dataclass_fields__}
    breaks = set(
        re.findall(r'^    "([\w-]+)": Break\(', (WORKSPACE / "parallel" / "breaks.py").read_text(), re.MULTILINE)
    )
    for command in (command for lesson in LESSONS for command in lesson.commands):
        typed = command.typed.replace("$QUICK", quick())
        for script, rest in re.findall(r"(jobs/\S+\.sbatch)([^;|)]*)", typed):
            program = re.search(r"^launch .*python3 (?:-m )?(\S+)", (WORKSPACE / script).read_text(), re.MULTILINE)[1]
            flags = set(re.findall(r"--[\w-]+", rest))
            if program in PROGRAMS:
                assert flags <= knobs, typed
            else:
                assert_lesson(rest.split()[0], flags)
            assert set(re.findall(r"--break (\S+)", rest)) <= breaks, typed
        for name, rest in re.findall(r"-m lessons\.(\w+)([^;|']*)", typed):
            assert_lesson(name, set(re.findall(r"--[\w-]+", rest)))


def assert_lesson(name: str, flags: set[str]) -> None:
    program = (WORKSPACE / "lessons" / f"{name}.py").read_text()
    for flag in flags:
        assert f'"{flag}"' in program, f"{name} has no {flag}"
    assert len(program.splitlines()) <= 75


@pytest.mark.parametrize(
    ("promise", "printed", "kept"),
    [
        ("ddp is none: at most 0.0000005 apart", "ddp is none: at most 0.0000012 apart", True),
        ("ddp is none: at most 0.0000005 apart", "ddp is NOT none: from step 2 on, at most 0.1 apart", False),
        ("rank 0: 10 collectives", "rank 0: 9 collectives", False),
        ("rank 0 [FFFF----====BBBBOOOO----]", "rank 0 [F-B]", True),
        ("saved .../step-... at step ...", "saved /runs/1/step-04.json at step 4", True),
        ("before", "a  b", True),
        ("a c", "a  b", False),
    ],
)
def test_a_promise_is_kept_or_not(promise, printed, kept):
    assert (Command("", promised=[promise]).broken_promises(f"before\n  {printed}\nafter") == []) == kept
