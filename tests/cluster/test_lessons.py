"""Every command of workspace/README.md, typed as alice, prints what is promised.

In order: later lessons show runs of earlier ones.
"""

import pytest

from harness.lessons import PAGE, keeps_its_promises, read
from slurmbed.course import data

INTRODUCTION, *LESSONS = read(PAGE.read_text())


@pytest.fixture(scope="module")
def with_text(slurm_cluster):
    data.text(slurm_cluster)
    return slurm_cluster


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)
def test_lesson(with_text, lesson):
    keeps_its_promises(with_text, [*INTRODUCTION.commands, *lesson.commands])
