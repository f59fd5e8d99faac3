"""What launchers are called, how they are started, and that the README's table is theirs."""

import re
from pathlib import Path

import pytest

from slurmbed.course import launchers
from slurmbed.course.launchers import LAUNCHERS
from slurmbed.errors import UsageError
from slurmbed.project import ROOT

PROGRAM = ("train.py", "--text", "it is.txt")


def test_the_readme_has_the_table():
    readme = (ROOT / "docs" / "launchers.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \| \d+ \| (.*) \|$", readme, re.MULTILINE)
    assert rows == [(each.script, each.started_by, each.rank_0, each.survives) for each in LAUNCHERS.values()]


def test_every_script_of_the_folder_is_a_launcher():
    folder = Path(ROOT / "workspace" / "launchers")
    listed = {each.script for each in LAUNCHERS.values()}
    assert {path.name for path in folder.glob("*.sbatch")} == {name for name in listed if name.endswith(".sbatch")}
    assert all((folder / name).is_file() for name in listed)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("srun", "sbatch --nodes=4 --gpus-per-node=2 --ntasks-per-node=2 launchers/srun.sbatch"),
        ("torchrun", "sbatch --nodes=4 --gpus-per-node=2 --cpus-per-task=2 launchers/torchrun.sbatch"),
        ("submitit", "python3 launchers/submitit_job.py --nodes 4 --ranks 2"),
    ],
)
def test_what_a_user_types(name, command):
    assert LAUNCHERS[name].command(4, 2, PROGRAM) == [*command.split(), *PROGRAM]


def test_hydra_takes_the_program_as_one_argument():
    command = LAUNCHERS["hydra"].command(4, 2, PROGRAM)
    assert command[:4] == ["python3", "launchers/hydra_submitit.py", "nodes=4", "ranks=2"]
    assert command[4] == "program=\"train.py --text 'it is.txt'\""


def test_only():
    assert [each.name for each in launchers.require("ray,srun")] == ["ray", "srun"]
    with pytest.raises(UsageError, match=r"no launcher 'slurm'(.|\n)*choose from srun, "):
        launchers.require("ray,slurm")
