"""The Compose CLI: what makes, starts, stops and removes a cluster's containers, and builds its images."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from slurmbed.errors import SlurmbedError
from slurmbed.process import Result, run
from slurmbed.project import BASE_FILE


def compose_version() -> str:
    """The version of Compose v2. SlurmbedError if there is none."""
    answer = run(["docker", "compose", "version", "--short"], timeout=30)
    if not answer.ok:
        raise SlurmbedError("Docker Compose v2 is missing", "make up installs it")
    return answer.stdout.strip()


def container_name(project: str, service: str) -> str:
    """What Compose calls the container of a service."""
    return f"{project}-{service}-1"


class Compose:
    """One Compose project.

    Args:
        project: its name; the cluster's name.
        install: called when there is no Compose v2; the command is run again after it.
    """

    def __init__(self, project: str, install: Callable[[], None] | None = None):
        self.project, self.install = project, install

    def with_overlay(
        self, overlay: Mapping, environment: Mapping[str, str], *arguments: str, timeout: float, capture: bool = True
    ) -> Result:
        """``docker compose ARGUMENTS`` on docker-compose.yml and the overlay, which is given on stdin.

        Args:
            environment: the variables of docker-compose.yml.
        """
        argv = ["docker", "compose", "-p", self.project, "-f", str(BASE_FILE), "-f", "-", *arguments]
        env = {**environment, "DOCKER_BUILDKIT": "1", "COMPOSE_ANSI": "never"}
        return self._run(argv, timeout=timeout, env=env, stdin=json.dumps(overlay), capture=capture)

    def by_name(self, *arguments: str, timeout: float, capture: bool = True) -> Result:
        """``docker compose ARGUMENTS`` on the containers that are there, whatever file they came from."""
        argv = ["docker", "compose", "--project-directory", "/", "-p", self.project, *arguments]
        return self._run(argv, timeout=timeout, capture=capture)

    def _run(self, argv: list[str], **options: Any) -> Result:
        done = run(argv, **options)
        if done.ok:
            return done
        try:
            compose_version()
        except SlurmbedError:
            if self.install is None:
                raise
            self.install()
            return run(argv, **options)
        return done
