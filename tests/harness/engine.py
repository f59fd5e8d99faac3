"""A cluster as the Docker engine sees it: its containers by service, what they were made with, what is left of it."""

import json
from collections.abc import Sequence

from slurmbed.process import Result, run

SERVICES = ("db", "slurmdbd", "slurmctld", "login")


def docker(*words: str, timeout: float = 60) -> str:
    """The output of ``docker WORDS...``. CommandError if it fails."""
    return run(["docker", *words], timeout=timeout).check().stdout


def container(cluster, service: str) -> str:
    """The name of a service's container."""
    return f"{cluster.name}-{service}-1"


def states(name: str) -> dict[str, str]:
    """The state of each container of the cluster called ``name``, by service."""
    labels = (f"com.docker.compose.project={name}", "org.slurmbed=cluster")
    form = '{{.Label "com.docker.compose.service"}} {{.State}}'
    listed = docker("ps", "--all", *(f"--filter=label={label}" for label in labels), "--format", form)
    return dict(sorted(line.split() for line in listed.splitlines()))


def inspect(cluster, service: str) -> dict:
    """``docker inspect`` of a service's container."""
    return json.loads(docker("inspect", container(cluster, service)))[0]


def started_at(cluster, service: str) -> str:
    return inspect(cluster, service)["State"]["StartedAt"]


def port(cluster, service: str, inside: int) -> int:
    """The port on 127.0.0.1 that leads to the container's port ``inside``."""
    return int(docker("port", container(cluster, service), str(inside)).split()[0].rpartition(":")[2])


def exec_argv(
    cluster, service: str, words: Sequence[str], user: str = "root", options: Sequence[str] = ()
) -> list[str]:
    return ["docker", "exec", "--user", user, *options, container(cluster, service), *words]


def execute(
    cluster,
    service: str,
    words: Sequence[str],
    *,
    user: str = "root",
    options: Sequence[str] = (),
    timeout: float = 60,
    stdin: str | None = None,
) -> Result:
    """Run a command in a service's container."""
    options = (*options, *(["--interactive"] if stdin is not None else []))
    return run(exec_argv(cluster, service, words, user, options), timeout=timeout, stdin=stdin)


def on_login(cluster, words: Sequence[str], timeout: float, user: str = "alice") -> Result:
    """Run a program of the workspace on the login node."""
    return execute(cluster, "login", words, user=user, options=("--workdir", "/workspace"), timeout=timeout)


def logs(cluster, service: str, since: str) -> str:
    """What a service has printed since then, in whatever form Docker gives its times."""
    return run(["docker", "logs", "--since", since, container(cluster, service)], timeout=60).check().output


def remove(name: str, services: Sequence[str]) -> None:
    """Remove containers, as somebody without slurmbed would."""
    docker("rm", "--force", "--volumes", *(f"{name}-{service}-1" for service in services), timeout=120)


def left(name: str) -> list[str]:
    """Containers, volumes and networks on the engine whose names contain ``name``."""
    only = f"--filter=name={name}"
    found = docker("ps", "--all", only, "--format={{.Names}}").split()
    return found + volumes(name) + docker("network", "ls", only, "--format={{.Name}}").split()


def volumes(name: str) -> list[str]:
    """Volumes on the engine whose names contain ``name``."""
    return docker("volume", "ls", f"--filter=name={name}", "--format={{.Name}}").split()
