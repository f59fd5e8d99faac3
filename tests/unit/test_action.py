"""What is offered for the CI of other projects: action.yml, and the files of examples/."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.action import ACTION, Runner
from slurmbed.cli.main import COMMANDS
from slurmbed.project import ROOT

BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "ci.md").read_text()
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
LOGS = ["Write the logs of the cluster", "Upload the logs"]


class Dry(Runner):
    """Runs no script; the step ``failing`` fails."""

    failing = ""

    def run(self, script, env):
        self.failed |= self.ran[-1] == self.failing
        return {}


@pytest.fixture
def ran(tmp_path):
    """ran(failing="a step", run="commands"): the names of the steps that run."""

    def ran(failing: str = "", **inputs: str) -> list[str]:
        runner = Dry(tmp_path, tmp_path, dict.fromkeys(("actions/cache", "actions/upload-artifact"), lambda given: {}))
        runner.failing = failing
        runner.use(**inputs)
        return runner.ran

    return ran


def test_the_action_removes_the_cluster_after_its_commands(ran):
    assert ran(run="true") == [name for name in STEPS if name not in LOGS]


def test_without_commands_the_cluster_stays_for_the_steps_that_follow(ran):
    assert ran() == [*STEPS][:4]


def test_a_cancelled_job_has_run_the_first_steps(ran):
    assert ran(last="Start the cluster", run="true") == [*STEPS][:4]


@pytest.mark.parametrize("failing", ["Start the cluster", "Run the commands"])
def test_a_failure_uploads_logs_and_removes_the_cluster(ran, failing):
    after = ran(failing, run="false")
    assert after[-4:] == [failing, *LOGS, "Remove the cluster"]


@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if "run" in step])
def test_scripts_of_the_action(name):
    """Inputs come as variables: in the text of a script they would be commands."""
    script = STEPS[name]["run"]
    assert "${{" not in script
    argv = [BIN / "shellcheck", "--shell=bash", "--exclude=SC2153", "-"]  # GitHub's variables
    done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("schema", "file"), [("github-actions", "action.yml"), ("gitlab-ci", "examples/gitlab-ci.yml")]
)
def test_files_are_valid(schema, file):
    valid(schema, ROOT / file)


def valid(schema: str, file: Path) -> None:
    argv = [BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", file]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_a_valid_workflow_and_all_inputs(tmp_path):
    (tmp_path / "workflow.yml").write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    valid("github-workflows", tmp_path / "workflow.yml")
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(ACTION["inputs"])


def test_the_development_container_calls_commands_that_there_are():
    container = json.loads((ROOT / "examples" / "devcontainer.json").read_text())
    called = [words[1] for key in container if key.endswith("Command") for words in [shlex.split(container[key])]]
    assert called == ["install", "up"]
    assert "up" in COMMANDS
