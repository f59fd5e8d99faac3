"""Every command of workspace/README.md and of the pages in workspace/lessons, typed as alice, prints what is promised.

In order: later lessons show runs of earlier ones.
"""

import pytest

from harness.lessons import ON_TWO_NODES, PAGE, keeps_its_promises, page, read
from slurmbed.course import data

INTRODUCTION, *LESSONS = read(PAGE.read_text())


@pytest.fixture(scope="module")
def with_text(slurm_cluster):
    data.text(slurm_cluster)
    return slurm_cluster


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)
def test_lesson(with_text, lesson):
    keeps_its_promises(with_text, [*INTRODUCTION.commands, *lesson.commands])


@pytest.mark.parametrize("lesson", ON_TWO_NODES)
def test_lesson_with_a_page_of_its_own(with_text, lesson):
    keeps_its_promises(with_text, [*INTRODUCTION.commands, *page(lesson).commands])
