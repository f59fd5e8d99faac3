"""Strategies are the job scripts of a workspace; a run can be repeated by the command that its report shows."""

import ast
import re

import pytest

from slurmbed.course import train
from slurmbed.course.runs import STRATEGY_NAMES
from slurmbed.errors import UsageError
from slurmbed.project import WORKSPACE


@pytest.fixture
def workspace(tmp_path):
    """A workspace with three job scripts, one of which is not a strategy's."""
    (tmp_path / "jobs").mkdir()
    for name, nodes, command in (
        ("tp", 2, "train.py --parallel tp"),
        ("none", 1, "train.py --parallel none"),
        ("mnist", 2, "train_mnist.py"),
    ):
        (tmp_path / "jobs" / f"{name}.sbatch").write_text(f'#!/bin/bash\n#SBATCH --nodes={nodes}\n{command} "$@"\n')
    return tmp_path


def test_strategies_are_those_with_a_job_script(workspace):
    assert train.strategies(workspace) == {"none": 1, "tp": 2}
    assert list(train.require_strategies(workspace, "STRATEGIES", "")) == ["none", "tp"]
    assert train.require_strategies(workspace, "STRATEGIES", "tp") == {"tp": 2}


def test_an_unknown_strategy_is_refused_with_those_that_there_are(workspace):
    with pytest.raises(UsageError, match=r"PARALLEL=mnist: .* no strategy 'mnist'(.|\n)*choose from none, tp"):
        train.require_strategies(workspace, "PARALLEL", "mnist")
    with pytest.raises(UsageError, match="STRATEGIES=none,,tp: there is no strategy ''"):
        train.require_strategies(workspace, "STRATEGIES", "none,,tp")


def test_every_strategy_of_the_project_has_a_name_and_a_job_script():
    known = train.strategies(WORKSPACE)
    table = re.search(r"^STRATEGIES = (\{.*?^\})", (WORKSPACE / "parallel/__init__.py").read_text(), re.M | re.S)[1]
    assert list(ast.literal_eval(table)) == list(STRATEGY_NAMES) == list(known)
    assert {"none": 1, "ddp": 2, "tp": 2, "hybrid": 4}.items() <= known.items()


def test_the_command_to_repeat_a_run_can_be_pasted():
    command = train.again_command("train", "PARALLEL=ddp", "NODES=3", asked=train.Asked("fast", 9, "my text.txt"))
    assert command == "make train PARALLEL=ddp NODES=3 RECIPE=fast STEPS=9 'TEXT=my text.txt'"
    assert train.again_command("train", asked=train.Asked(container="torch:2")) == "make train CONTAINER=torch:2"
