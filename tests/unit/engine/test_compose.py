"""The Compose CLI, with a `docker` that fails as engines do."""

import os

import pytest

from slurmbed.engine.compose import Compose

DOCKER = """#!/bin/sh
case "$*" in *version*) echo 2.26.0; exit ;; esac
echo "$@" >>"$0.calls"
if [ "$(wc -l <"$0.calls")" -gt {failures} ]; then exit 0; fi
echo "{message}" >&2
exit 1
"""
RACE = (
    "failed to create endpoint c-db-1: adding interface veth1 to bridge br-1 failed: route ip+net: "
    "no such network interface"
)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """docker(failures, message): fails so often; the calls so far."""

    def docker(failures: int, message: str):
        program = tmp_path / "docker"
        program.write_text(DOCKER.format(failures=failures, message=message))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return lambda: (tmp_path / "docker.calls").read_text().splitlines()

    return docker


def test_a_start_that_another_ones_interface_broke_is_tried_again(docker):
    calls = docker(1, RACE)
    assert Compose("c").by_name("up", timeout=30).ok
    assert len(calls()) == 2


def test_it_is_tried_once_more_alone(docker):
    docker(9, RACE)
    assert "no such network interface" in Compose("c").by_name("up", timeout=30).stderr


def test_any_other_failure_is_not_tried_again(docker):
    calls = docker(9, "no space left on device")
    assert not Compose("c").by_name("up", timeout=30).ok
    assert sum(" up" in call for call in calls()) == 1
