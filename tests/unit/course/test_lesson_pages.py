"""The lessons with pages of their own: each has all its parts, is in the index, and names nothing that is not there."""

import re

import pytest

from harness.lessons import ON_CAMPUS, ON_TWO_NODES, PAGE, WITH_CONTAINERS, WORKSPACE, page

LESSONS = [page(name) for name in (*ON_TWO_NODES, *ON_CAMPUS, *WITH_CONTAINERS)]
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)


def test_every_page_is_typed_on_a_cluster_and_is_in_the_index():
    assert sorted(lesson.title for lesson in LESSONS) == sorted(path.stem for path in WORKSPACE.glob("lessons/*.md"))
    index = PAGE.read_text().partition("## More lessons")[2]
    assert set(re.findall(r"\(lessons/(\w+)\.md\)", index)) == {lesson.title for lesson in LESSONS}


@each_lesson
def test_a_page_has_all_its_parts(lesson):
    wrong = [command for command in lesson.commands if command.may_fail]
    for part in ("**Time:** ", "**Goals.** ", "**Break it.** ", "<details><summary>Answer</summary>\n\n", "**Read** "):
        assert f"\n{part}" in lesson.text, part
    assert any(command.promised for command in wrong), "the break says what is then seen"
    assert "\n|---|" in lesson.text or "```\n" in lesson.text, "a table or a picture"
    assert lesson.text.count("\n") <= 200, "a few pages at most"


@each_lesson
def test_what_a_page_names_is_there(lesson):
    folder = WORKSPACE / "lessons"
    links = re.findall(r"\]\((?!https?:)([^)#]+)", lesson.text)
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sbatch|sh|yaml))`(?: \(([^)]*)\))?", lesson.text)
    started = re.findall(r"(?:jobs|lessons|launchers|measure)/[\w-]+\.(?:sbatch|py)", lesson.text)
    modules = re.findall(r"-m ((?:lessons|measure)\.\w+)|lesson\.sbatch (\w+)", lesson.text)
    missing = [link for link in links if not (folder / link).exists()]
    missing += [name for name in started if not (WORKSPACE / name).exists()]
    for whole, short in modules:
        name = whole or f"lessons.{short}"
        if not (WORKSPACE / f"{name.replace('.', '/')}.py").exists():
            missing.append(name)
    assert missing == []
    for file, names in named:
        content = (WORKSPACE / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", content), f"{file} has no {name}"
