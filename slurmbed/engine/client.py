"""The one gateway to the Docker engine, over one connection: list, exec, logs, events. Compose does the rest."""

import math
import os
import shlex
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

from slurmbed.errors import CommandError, SlurmbedError
from slurmbed.process import Result, last_lines
from slurmbed.project import command

PATIENCE = 30  # seconds for a request that should take milliseconds
ENDED_LATE = 124  # exit status of coreutils' timeout


@dataclass(frozen=True)
class EngineInfo:
    """The engine's machine; memory in MiB.

    Args:
        data: the folder where the engine keeps images and volumes.
        security: what separates containers from the machine: rootless, userns, selinux, apparmor, seccomp.
        system: the name of its operating system, like Docker Desktop.
        proxies: what it pulls images through.
        assigns_cpus: whether containers can have dedicated CPUs.
        version: like 28.2.2.
        cgroups: version of cgroups, 1 or 2.
    """

    id: str
    cpus: int
    memory: int
    data: str
    limits_cpus: bool
    limits_memory: bool
    runtimes: tuple[str, ...]
    security: tuple[str, ...] = ()
    system: str = ""
    architecture: str = ""
    proxies: tuple[str, ...] = ()
    assigns_cpus: bool = False
    version: str = ""
    cgroups: str = "1"

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "EngineInfo":
        """From what the engine answers to `docker info`."""
        options = (
            each.partition(",")[0] for each in found.get("SecurityOptions") or ()
        )  # name=seccomp,profile=default
        return cls(
            id=found["ID"],
            cpus=found["NCPU"],
            memory=found["MemTotal"] >> 20,
            data=found["DockerRootDir"],
            limits_cpus=found["CpuCfsQuota"],
            limits_memory=found["MemoryLimit"],
            runtimes=tuple(found.get("Runtimes") or ()),
            security=tuple(each.removeprefix("name=") for each in options),
            system=found.get("OperatingSystem", ""),
            architecture=found.get("Architecture", ""),
            proxies=tuple(found[key] for key in ("HttpProxy", "HttpsProxy") if found.get(key)),
            assigns_cpus=found.get("CPUSet", False),
            version=found.get("ServerVersion", ""),
            cgroups=found.get("CgroupVersion", "1"),
        )

    @property
    def maps_users(self) -> bool:
        """Whether uids in containers are other uids on the host: only root of a container can be the host's user."""
        return bool({"rootless", "userns"} & set(self.security))


class Engine:
    """A connection to the engine that the `docker` command talks to.

    Raises:
        SlurmbedError: it does not answer.
    """

    def __init__(self) -> None:
        import docker  # it takes 0.2 s, which --help does not have

        self.failures = (docker.errors.APIError, docker.errors.DockerException, OSError)
        self.not_found = docker.errors.NotFound
        with self.explained("connecting"):
            self.api = docker.APIClient(
                base_url=endpoint(), version="auto", timeout=PATIENCE, use_ssh_client=True, **tls_of_environment()
            )

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raise the SDK's errors as CommandError, or as SlurmbedError if no engine answers."""
        import requests.exceptions  # comes with docker

        try:
            yield
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            raise no_answer(f"{what}: {error}") from error
        except self.failures as error:
            if what == "connecting":
                raise no_answer(str(error)) from error
            raise CommandError(f"{what}: {getattr(error, 'explanation', None) or error}") from error

    @cached_property
    def info(self) -> EngineInfo:
        with self.explained("docker info"):
            return EngineInfo.read(self.api.info())

    def version(self) -> str:
        with self.explained("docker version"):
            return self.api.version()["Version"]

    def containers(self) -> list[dict[str, Any]]:
        """The engine's list of all containers, running or not."""
        with self.explained("docker ps"):
            return self.api.containers(all=True)

    def volumes(self) -> list[dict[str, Any]]:
        with self.explained("docker volume ls"):
            return self.api.volumes()["Volumes"] or []

    def networks(self) -> list[dict[str, Any]]:
        with self.explained("docker network ls"):
            return self.api.networks()

    def containers_on(self, network: str) -> list[str]:
        """The names of the running containers on a network."""
        with self.explained(f"docker network inspect {network}"):
            return [each["Name"] for each in (self.api.inspect_network(network)["Containers"] or {}).values()]

    def images(self, label: str) -> list[dict[str, Any]]:
        """The engine's list of all images with this label."""
        with self.explained("docker images"):
            return self.api.images(filters={"label": label})

    def tag(self, image: str, name: str) -> None:
        """Tag the image with this id, like slurmbed-db:24.11; another image loses the tag."""
        with self.explained(f"docker tag {image} {name}"):
            repository, _, tag = name.rpartition(":")
            self.api.tag(image, repository, tag)

    def logs(self, container: str, lines: int) -> str:
        """The last lines of a container's log."""
        with self.explained(f"docker logs {container}"):
            return self.api.logs(container, tail=lines).decode(errors="replace")

    def inspect(self, container: str) -> dict[str, Any]:
        """The output of `docker inspect` for a container."""
        with self.explained(f"docker inspect {container}"):
            return self.api.inspect_container(container)

    def act(self, action: str, container: str) -> None:
        """``docker ACTION CONTAINER``: kill, stop, start, restart, pause or unpause."""
        with self.explained(f"docker {action} {container}"):
            getattr(self.api, action)(container)

    def networks_of(self, container: str) -> dict[str, dict[str, Any]]:
        """Network to endpoint, with its Aliases and IPAddress."""
        return self.inspect(container)["NetworkSettings"]["Networks"]

    def disconnect(self, container: str, network: str) -> None:
        with self.explained(f"docker network disconnect {network} {container}"):
            self.api.disconnect_container_from_network(container, network)

    def connect(self, container: str, network: str, aliases: Sequence[str]) -> None:
        with self.explained(f"docker network connect {network} {container}"):
            self.api.connect_container_to_network(container, network, aliases=list(aliases))

    def remove_containers(self, names: Sequence[str]) -> None:
        """Remove containers with their anonymous volumes; missing ones are skipped."""
        for name in names:
            with self.explained(f"docker rm {name}"):
                try:
                    self.api.remove_container(name, force=True, v=True)
                except self.not_found:
                    continue

    def remove_images(self, ids: Sequence[str]) -> None:
        for image in dict.fromkeys(ids):
            with self.explained(f"docker rmi {image}"):
                try:
                    self.api.remove_image(image, force=True)
                except self.not_found:
                    continue

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        user: str = "root",
        workdir: str | None = None,
        timeout: float = 60,
    ) -> Result:
        """Run a command in a container to its end.

        Args:
            timeout: seconds, after which the command is killed in the container.

        Raises:
            CommandError: the container does not exist or does not run, or the command ran past ``timeout``.
        """
        running = self.start(container, argv, user=user, workdir=workdir, timeout=timeout)
        for _ in running.lines():
            pass
        return running.result()

    def start(
        self,
        container: str,
        argv: Sequence[str],
        *,
        user: str = "root",
        workdir: str | None = None,
        timeout: float = 60,
    ) -> "RunningCommand":
        """Like ``exec``, but return as soon as the command runs."""
        place = ["--workdir", workdir] if workdir else []
        typed = ("docker", "exec", "--user", user, *place, container, *map(str, argv))
        bounded = ["timeout", "--kill-after=5", f"{timeout:g}", *map(str, argv)]
        with self.explained(shlex.join(typed)), self.patience(timeout + PATIENCE):
            made = self.api.exec_create(container, bounded, user=user, workdir=workdir)["Id"]
            stream = output_of(self.api, made)
        return RunningCommand(self, typed, made, stream, timeout)

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Within this context requests time out after so many seconds without an answer."""
        before, self.api.timeout = self.api.timeout, math.ceil(seconds)
        try:
            yield
        finally:
            self.api.timeout = before

    @contextmanager
    def watched(self, project: str, died: Callable[[str], None]) -> Iterator[None]:
        """While this runs, ``died`` is called with the name of each container of a Compose project that ends.

        It is called on a separate thread, over a separate connection.
        """
        filters = {"type": "container", "event": "die", "label": f"com.docker.compose.project={project}"}
        with self.explained("docker events"):
            events = self.api.events(decode=True, filters=filters)

        def listen() -> None:
            try:
                for event in events:
                    died(event["Actor"]["Attributes"]["name"])
            except (*self.failures, ValueError, AttributeError):  # the connection was closed below
                return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            events.close()


class RunningCommand:
    """A command that runs in a container; ``lines`` must be read to the end before ``result`` is asked for."""

    def __init__(self, engine: Engine, typed: tuple[str, ...], exec_id: str, stream: Any, timeout: float):
        self.engine, self.typed, self.exec_id, self.stream, self.timeout = engine, typed, exec_id, stream, timeout
        self.end = time.monotonic() + timeout
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []

    def lines(self) -> Iterator[str]:
        """Lines of standard output as they come, until the command has ended or ``stop`` is called."""
        rest = b""
        with self.engine.explained(shlex.join(self.typed)):
            for stdout, stderr in self.stream:
                self.stdout.append(stdout or b"")
                self.stderr.append(stderr or b"")
                *lines, rest = (rest + (stdout or b"")).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)

    def stop(self) -> None:
        """Stop reading, from any thread. The command itself continues until its end or its time limit."""
        self.stream.close()

    def result(self) -> Result:
        """Its exit status and output. CommandError if it ran past its time limit."""
        with self.engine.explained(shlex.join(self.typed)):
            code = self.engine.api.exec_inspect(self.exec_id)["ExitCode"]
        output, errors = (b"".join(parts).decode(errors="replace") for parts in (self.stdout, self.stderr))
        if code == ENDED_LATE and time.monotonic() >= self.end:
            details = last_lines(output + errors)
            raise CommandError(f"timed out after {self.timeout:g} s: {shlex.join(self.typed)}", "", details)
        return Result(self.typed, code, output, errors)


def output_of(api: Any, exec_id: str) -> Any:
    """Start a command; (standard output, standard error) as they come, one of them None.

    The SDK itself would read the bare socket, and lose what came together with the response's headers: they are read
    through a buffer, which has the rest. https://github.com/docker/docker-py/issues/3332
    """
    from docker.types import CancellableStream  # as in Engine

    response = api.exec_start(exec_id, socket=True)._response
    return CancellableStream(frames(response.raw._fp.fp), response)


def frames(file: IO[bytes]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """A stream of two, as the engine mixes them: https://docs.docker.com/reference/api/engine/ (ContainerAttach)."""
    while len(header := file.read(8)) == 8:
        kind, length = struct.unpack(">BxxxL", header)
        content = file.read(length)
        yield (None, content) if kind == 2 else (content, None)


def no_answer(detail: str) -> SlurmbedError:
    where = os.environ.get("DOCKER_HOST")
    reason = f"DOCKER_HOST={where} does not answer" if where else "the Docker engine does not answer"
    starts = f"{command('up')} starts it; {command('doctor')} checks this machine"
    hint = "start that engine, or unset DOCKER_HOST" if where else starts
    return SlurmbedError(reason, hint, last_lines(detail, 3))


def endpoint() -> str | None:
    """The `docker` command's address of the engine: DOCKER_HOST or the current context's; None for the usual socket."""
    if named := os.environ.get("DOCKER_HOST"):
        return named
    from docker.context import ContextAPI  # as in Engine

    context = ContextAPI.get_current_context()
    return context.Host if context else None


def tls_of_environment() -> Mapping[str, Any]:
    """The `docker` command's TLS settings, if DOCKER_TLS_VERIFY or DOCKER_CERT_PATH is set."""
    from docker.utils import kwargs_from_env  # as in Engine

    found = kwargs_from_env()
    return {"tls": found["tls"]} if found.get("tls") else {}
