"""What Compose is started with, by a `docker` that says so."""

import os
import re

import pytest
import yaml

from slurmbed.cluster import images
from slurmbed.cluster.settings import Choices
from slurmbed.engine import overlay
from slurmbed.engine.compose import LOWEST, Compose, compose_version
from slurmbed.errors import SlurmbedError
from slurmbed.project import BASE_FILE, ROOT
from slurmbed.spec.slices import Slice

TELL = """#!/bin/sh
env
echo "ARGUMENTS $*"
"""
OURS = {"TAG": "latest", "SUITE": "etch", "WORKSPACE": "/var/lib/jenkins", "TORCH": "cuda"}
COMPOSES = {"COMPOSE_FILE": "/elsewhere.yml", "COMPOSE_PROFILES": "left-out", "COMPOSE_PROJECT_NAME": "other"}


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Make `docker` this shell script."""

    def docker(script: str) -> None:
        (tmp_path / "docker").write_text(script)
        (tmp_path / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return docker


@pytest.mark.parametrize("how", ["with_overlay", "by_name"])
def test_no_variable_of_the_users_changes_a_cluster(docker, monkeypatch, how):
    docker(TELL)
    for name, value in (OURS | COMPOSES).items():
        monkeypatch.setenv(name, value)
    compose = Compose("c")
    environment = images.build_environment(Choices())
    said = (
        compose.with_overlay({}, environment, "up", timeout=20)
        if how == "with_overlay"
        else compose.by_name("stop", timeout=20)
    ).stdout
    assert not re.search("^COMPOSE_", said, re.MULTILINE)
    assert "ARGUMENTS compose --env-file /dev/null" in said
    assert "-p c " in said


def test_every_variable_of_the_compose_file_is_slurmbeds_own_or_a_proxy():
    text = BASE_FILE.read_text()
    assert {name for name in re.findall(r"\$\{(\w+)", text) if not name.startswith("SLURMBED_")} == set()
    arguments = yaml.safe_load(text)["x-build"]["args"]
    assert {name for name, value in arguments.items() if value is None} == {
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
    }


@pytest.mark.parametrize("version", ["2.20.0", "v2.26.1-4", "2.40.3-desktop.1", "5.6.1"])
def test_a_compose_that_is_new_enough(docker, version):
    docker(f"#!/bin/sh\necho {version}\n")
    assert compose_version() == version


@pytest.mark.parametrize("script", ["echo 2.19.1", "echo 1.29.2", "exit 1"])
def test_a_compose_that_is_too_old_or_missing(docker, script):
    docker(f"#!/bin/sh\n{script}\n")
    with pytest.raises(SlurmbedError, match=r"(too old: 2.20 or later is needed|missing)(.|\n)*docs.docker.com"):
        compose_version()


def test_the_engines_script_wants_the_same_compose():
    wanted = ".".join(map(str, LOWEST))
    assert f"\nlowest_compose={wanted}\n" in (ROOT / "scripts" / "engine").read_text()


def test_a_clone_whose_folder_has_a_dollar(monkeypatch):
    monkeypatch.setattr(overlay, "BASE_FILE", "/a $b/docker-compose.yml")
    part = Slice(cpus=1, memory=512, cpu_limit=1, memory_limit=512)
    services = overlay.overlay([part] * 3, None, {})["services"]
    assert services["node-3"]["extends"]["file"] == "/a $$b/docker-compose.yml"
