"""Strategies are the job scripts of a workspace; a run can be repeated by the command that its report shows."""

import ast
import re
from dataclasses import asdict

import pytest

from slurmbed.course import train
from slurmbed.course.runs import STRATEGY_NAMES
from slurmbed.errors import UsageError
from slurmbed.project import WORKSPACE, command


@pytest.fixture
def workspace(tmp_path):
    """A workspace with three job scripts, one of which is not a strategy's."""
    (tmp_path / "jobs").mkdir()
    for name, nodes, program in (
        ("tp", 2, "train.py --parallel tp"),
        ("none", 1, "train.py --parallel none"),
        ("mnist", 2, "train_mnist.py"),
    ):
        (tmp_path / "jobs" / f"{name}.sbatch").write_text(f'#!/bin/bash\n#SBATCH --nodes={nodes}\n{program} "$@"\n')
    return tmp_path


def test_strategies_are_those_with_a_job_script(workspace):
    assert train.strategies(workspace) == {"none": 1, "tp": 2}
    assert list(train.require_strategies(workspace, "strategies", "")) == ["none", "tp"]
    assert train.require_strategies(workspace, "strategies", "tp") == {"tp": 2}


def test_an_unknown_strategy_is_refused_with_those_that_there_are(workspace):
    with pytest.raises(UsageError, match=r"PARALLEL=mnist: .* no strategy 'mnist'(.|\n)*choose from none, tp"):
        train.require_strategies(workspace, "parallel", "mnist")
    with pytest.raises(UsageError, match="STRATEGIES=none,,tp: there is no strategy ''"):
        train.require_strategies(workspace, "strategies", "none,,tp")


def test_every_strategy_of_the_project_has_a_name_and_a_job_script():
    known = train.strategies(WORKSPACE)
    table = re.search(r"^STRATEGIES = (\{.*?^\})", (WORKSPACE / "parallel/__init__.py").read_text(), re.M | re.S)[1]
    assert list(ast.literal_eval(table)) == list(STRATEGY_NAMES) == list(known)
    assert {"none": 1, "ddp": 2, "tp": 2, "hybrid": 4}.items() <= known.items()


def test_the_command_to_repeat_a_run_has_the_options_that_were_given():
    asked = train.Asked("fast", 9, "my text.txt")
    assert command("train", nodes=3, **asdict(asked)) == "make train NODES=3 RECIPE=fast STEPS=9 'TEXT=my text.txt'"
    assert command("train", **asdict(train.Asked(container="torch:2"))) == "make train CONTAINER=torch:2"
