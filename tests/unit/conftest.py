"""Unit tests run before anything is installed: none of them may need an engine."""

import pytest


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    """An engine that does not answer, also where there is one."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
