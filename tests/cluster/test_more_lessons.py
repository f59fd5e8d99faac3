"""Every command of the pages in workspace/lessons that need two nodes, typed as alice, prints what is promised."""

import pytest

from harness.lessons import ON_TWO_NODES, PAGE, Command, keeps_its_promises, page, read
from slurmbed.course import data

BEFORE = read(PAGE.read_text())[0].commands
# Of lesson 4: two pages compare their runs with it.
ALONE = Command("lessons/follow jobs/none.sbatch $QUICK")


@pytest.fixture(scope="module")
def after_lesson_4(slurm_cluster):
    data.text(slurm_cluster)
    keeps_its_promises(slurm_cluster, [*BEFORE, ALONE])
    return slurm_cluster


@pytest.mark.parametrize("lesson", ON_TWO_NODES)
def test_lesson_with_a_page_of_its_own(after_lesson_4, lesson):
    keeps_its_promises(after_lesson_4, [*BEFORE, *page(lesson).commands])
