"""The Compose CLI, which makes, starts, stops and removes a cluster's containers, and builds its images."""

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from slurmbed.errors import SlurmbedError
from slurmbed.process import Result, run
from slurmbed.project import BASE_FILE, command

LOWEST = (2, 20)
"""The lowest version that takes docker-compose.yml and the options that it is given; also in scripts/engine."""


def compose_version() -> str:
    """The version of Compose. SlurmbedError if there is none, or it is too old."""
    answer = run(["docker", "compose", "version", "--short"], timeout=30)
    hint = f"{command('up')} installs it on Debian and Ubuntu; elsewhere: https://docs.docker.com/compose/install/"
    if not answer.ok:
        raise SlurmbedError("Docker Compose v2 is missing", hint)
    found = answer.stdout.strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < LOWEST:
        raise SlurmbedError(f"Docker Compose {found} is too old: {'.'.join(map(str, LOWEST))} or later is needed", hint)
    return found


def container_name(project: str, service: str) -> str:
    """Compose's name for the container of a service."""
    return f"{project}-{service}-1"


class Compose:
    """One Compose project.

    Args:
        project: its name; the cluster's name.
        install: called if Compose v2 is missing; then the command runs again.
    """

    def __init__(self, project: str, install: Callable[[], None] | None = None):
        self.project, self.install = project, install

    def with_overlay(
        self,
        overlay: Mapping,
        environment: Mapping[str, str | None],
        *arguments: str,
        timeout: float,
        capture: bool = True,
    ) -> Result:
        """``docker compose ARGUMENTS`` on docker-compose.yml and the overlay, which is passed on stdin.

        Args:
            environment: the variables of docker-compose.yml; None removes one.
        """
        files = ("-f", str(BASE_FILE), "-f", "-")
        env = {**environment, "DOCKER_BUILDKIT": "1"}
        return self._run(*files, *arguments, timeout=timeout, env=env, stdin=json.dumps(overlay), capture=capture)

    def by_name(self, *arguments: str, timeout: float, capture: bool = True) -> Result:
        """``docker compose ARGUMENTS`` on the existing containers, whatever file they came from."""
        return self._run("--project-directory", "/", *arguments, timeout=timeout, env={}, capture=capture)

    def _run(self, *arguments: str, env: Mapping[str, str | None], **options: Any) -> Result:
        # Neither Compose's own variables nor a file .env change a cluster.
        argv = ["docker", "compose", "--env-file", os.devnull, "--ansi", "never", "-p", self.project, *arguments]
        options["env"] = {**dict.fromkeys(name for name in os.environ if name.startswith("COMPOSE_")), **env}
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
