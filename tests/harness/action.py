"""action.yml as GitHub runs it: its steps in order, with stand-ins for the actions that it uses."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from harness.commands import typed_environment
from harness.internals import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
STATUS = re.compile(r"\b(always|failure)\(\)")
NAME = re.compile(r"\b(?:inputs|steps|runner)(?:\.[\w-]+)+")
VARIABLE = re.compile(r"^(\w+)=(.*)$", re.MULTILINE)


class Runner:
    """Runs the steps in the folder ``workspace``, with files of its own in the folder ``temp``.

    Attributes:
        ran: names of the steps that ran, in order.
        output: what they printed.
        failed: whether one of them failed.
    """

    def __init__(self, workspace: Path, temp: Path, stand_ins: Mapping[str, Callable[[dict], dict[str, str]]]):
        """``stand_ins``: by the name of an action, what does its work: its inputs to its outputs."""
        self.workspace, self.stand_ins = workspace, stand_ins
        self.values = {"runner.temp": str(temp), "runner.arch": "X64"}
        self.env = {
            **{name: value for name, value in typed_environment().items() if name != "PYTHONPATH"},
            "RUNNER_TEMP": str(temp),
            "GITHUB_WORKSPACE": str(workspace),
            "GITHUB_ACTION_PATH": str(ROOT),
            **{name: str(temp / name.lower()) for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT")},
        }
        self.ran: list[str] = []
        self.output, self.failed = "", False

    def use(self, last: str = "", **inputs: str) -> None:
        """All steps, as `uses:` with these inputs; or those up to ``last``, as of a job that is cancelled then."""
        defaults = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}
        self.values |= {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()}
        for step in ACTION["runs"]["steps"]:
            if self.is_wanted(step.get("if", "")):
                self.ran.append(step["name"])
                self.take(step)
            if step["name"] == last:
                break

    def is_wanted(self, condition: str) -> bool:
        """Whether a step runs: after a failure only if its condition asks for the status."""
        if self.failed and not STATUS.search(condition):
            return False
        words = STATUS.sub(lambda found: str(found[1] == "always" or self.failed), condition or "True")
        words = NAME.sub(lambda found: repr(self.value(found[0])), words)
        return bool(eval(words.replace("&&", " and ").replace("||", " or ")))

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def filled(self, values: Mapping[str, str]) -> dict[str, str]:
        """Values with what their ${{ expressions }} stand for."""
        return {name: EXPRESSION.sub(lambda found: self.value(found[1]), text) for name, text in values.items()}

    def take(self, step: dict) -> None:
        if "uses" in step:
            outputs = self.stand_ins[step["uses"].partition("@")[0]](self.filled(step["with"]))
        else:
            outputs = self.run(step["run"], self.filled(step.get("env", {})))
        self.values |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in outputs.items()}

    def run(self, script: str, env: Mapping[str, str]) -> dict[str, str]:
        """A step's script; what it leaves for later steps is kept. Returns its outputs."""
        files = {name: Path(self.env[name]) for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT")}
        for each in files.values():
            each.write_text("")
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(argv, cwd=self.workspace, env={**self.env, **env}, timeout=900, **streams)
        self.output += done.stdout
        self.failed |= done.returncode != 0
        self.env |= VARIABLE.findall(files["GITHUB_ENV"].read_text())
        for folder in files["GITHUB_PATH"].read_text().splitlines():
            self.env["PATH"] = folder + os.pathsep + self.env["PATH"]
        return dict(VARIABLE.findall(files["GITHUB_OUTPUT"].read_text()))
