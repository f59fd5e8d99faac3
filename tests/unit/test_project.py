"""Hints and messages name commands as the user types them: make's in a clone, slurmbed's where there is no Makefile."""

import re

import pytest

from slurmbed import project
from slurmbed.cluster.settings import checked
from slurmbed.course import launchers
from slurmbed.errors import UsageError
from slurmbed.project import ROOT
from slurmbed.spec.gpus import Gpus, share_out


@pytest.fixture
def installed(monkeypatch):
    """A package that pip installed."""
    monkeypatch.setattr(project, "IS_CLONE", False)


def test_a_hint_in_a_clone_is_for_make():
    assert project.command("up", name="x", nodes=2, adopt=True, rest=False) == "make up NAME=x NODES=2 ADOPT=1 REST=0"
    assert project.option("nvidia_smi", False) == "NVIDIA_SMI=0"
    assert project.option("memory") == "MEMORY"


def test_a_hint_names_only_clusters_that_commands_do_not_use_by_default(monkeypatch):
    monkeypatch.delenv("SLURMBED_NAME", raising=False)
    assert project.command("up", name="slurmbed") == "make up"
    monkeypatch.setenv("SLURMBED_NAME", "x")
    assert project.command("up", name="x") == "make up"
    assert project.command("up", name="slurmbed") == "make up NAME=slurmbed"


def test_a_hint_of_an_installed_package_is_for_slurmbed(installed):
    hint = project.command("up", name="x", nodes=2, adopt=True, rest=False)
    assert hint == "slurmbed up --name x --nodes 2 --adopt --no-rest"
    assert project.option("nvidia_smi", False) == "--no-nvidia-smi"
    assert project.option("ssh_port", 2222) == "--ssh-port 2222"
    assert project.option("memory") == "--memory"


@pytest.mark.parametrize(
    ("is_clone", "text"), [(True, "make train 'TEXT=a b'"), (False, "slurmbed train --text 'a b'")]
)
def test_a_hint_can_be_pasted_and_has_only_what_was_given(monkeypatch, is_clone, text):
    monkeypatch.setattr(project, "IS_CLONE", is_clone)
    assert project.command("train", recipe=None, steps="", text="a b") == text


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: checked({"nodes": "many"}), "--nodes many: not a whole number"),
        (lambda: checked({"config": ROOT / "clusters/laptop.yaml", "gpus": "2"}), "cannot be combined with --gpus;"),
        (lambda: share_out(Gpus(count=2), 2, ["NVIDIA A100"], ()), "for emulated ones: --gpus emulated:2"),
        (lambda: launchers.require("magic"), "--only magic: there is no launcher"),
    ],
)
def test_errors_of_an_installed_package_name_its_options(installed, refused, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        refused()


def test_no_message_spells_an_option_by_itself():
    names = "NAME|NODES|CPUS|MEMORY|GPUS|CONFIG|FLAVOR|ADOPT|RETAIN|CONTAINERS|WORKSPACE|TORCH|TEXT|ONLY"
    spelled = re.compile(rf"[\"'].*\b({names})=[\w.{{]")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "slurmbed").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if spelled.search(line) and '"""' not in line
    ]
    assert not found, "use slurmbed.project.option or command"
