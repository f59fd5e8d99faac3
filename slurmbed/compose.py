"""Docker and Docker Compose: the project's containers, by name. No state is kept in files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmbed.run import Result, run

ROOT = Path(__file__).resolve().parent.parent
BASE_FILE = ROOT / "docker-compose.yml"
NODES_IN_BASE_FILE = 2


@dataclass(frozen=True)
class Slice:
    """What a node says it has, and what its container is held to; memory in MiB, a limit of 0 is none.

    ``gpus`` is "" (none), "2" or "emulated:2"; ``gpu_ids`` the host's GPUs, by nvidia-smi's numbers, that these are.
    """

    cpus: int
    memory: int
    cpu_limit: int
    memory_limit: int
    gpus: str = ""
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Container:
    """A container of the project; ``service`` as in docker-compose.yml, ``state`` as Docker says."""

    service: str
    state: str
    status: str

    @property
    def node_number(self) -> int | None:
        prefix, _, number = self.service.rpartition("-")
        return int(number) if prefix == "node" and number.isdigit() else None


def overlay(slices: Sequence[Slice], base_file: Path = BASE_FILE) -> dict:
    """What makes docker-compose.yml a cluster of ``len(slices)`` nodes, each with its slice of the host."""
    services: dict[str, dict] = {}
    if slices[0].gpus:  # a cluster's nodes have the same GRES; slurmctld must know it too
        services["slurmctld"] = {"environment": {"NODE_GRES": f"gpu:{slices[0].gpus}"}}
    for number, part in enumerate(slices, start=1):
        service = services[f"node-{number}"] = {
            "environment": {"NODE_CPUS": str(part.cpus), "NODE_MEMORY": str(part.memory)},
            "cpus": part.cpu_limit,
            "mem_limit": f"{part.memory_limit}m",
        }
        if part.gpus:
            service["environment"]["NODE_GRES"] = f"gpu:{part.gpus}"
            service.update(gpu_devices(part))
        if number > NODES_IN_BASE_FILE:
            service["extends"] = {"file": str(base_file), "service": "node-1"}
            service["hostname"] = f"node-{number}"
    for number in range(len(slices) + 1, NODES_IN_BASE_FILE + 1):
        services[f"node-{number}"] = {"profiles": ["left-out"]}
    return {"services": services}


def gpu_devices(part: Slice) -> dict:
    """The keys of a service that give its container the GPUs; Slurm takes any device file for an emulated one."""
    if not part.gpu_ids:
        return {"devices": [f"/dev/null:/dev/emulated-gpu{i}" for i in range(int(part.gpus.rpartition(":")[2]))]}
    devices = [{"driver": "nvidia", "device_ids": list(part.gpu_ids), "capabilities": ["gpu"]}]
    return {"deploy": {"resources": {"reservations": {"devices": devices}}}}


class Compose:
    """One Compose project.

    Args:
        project: its name; containers are called PROJECT-SERVICE-1.
        env: variables that docker-compose.yml reads.
    """

    def __init__(self, project: str, env: Mapping[str, str] | None = None):
        self.project = project
        self.env = {**(env or {}), "DOCKER_BUILDKIT": "1", "COMPOSE_ANSI": "never"}

    def with_overlay(self, slices: Sequence[Slice], *words: str, timeout: float, capture: bool = True) -> Result:
        """``docker compose WORDS`` on docker-compose.yml and the overlay for these nodes, given on stdin."""
        argv = ["docker", "compose", "-p", self.project, "-f", str(BASE_FILE), "-f", "-", *words]
        return run(argv, timeout=timeout, env=self.env, stdin=json.dumps(overlay(slices)), capture=capture)

    def by_name(self, *words: str, timeout: float, capture: bool = True) -> Result:
        """``docker compose WORDS`` on the containers that are there, whatever file they came from."""
        argv = ["docker", "compose", "--project-directory", "/", "-p", self.project, *words]
        return run(argv, timeout=timeout, capture=capture)

    def containers(self) -> list[Container]:
        label = f"label=com.docker.compose.project={self.project}"
        form = '{{.Label "com.docker.compose.service"}}\t{{.State}}\t{{.Status}}'
        listed = run(["docker", "ps", "--all", "--filter", label, "--format", form], timeout=30).check()
        return sorted((Container(*line.split("\t")) for line in listed.stdout.splitlines()), key=lambda c: c.service)

    def highest_node(self) -> int:
        """The highest number of the nodes that are there; 0 if there is none."""
        return max((c.node_number or 0 for c in self.containers()), default=0)

    def volumes(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        return run(["docker", "volume", "ls", "--quiet", "--filter", label], timeout=30).check().stdout.split()

    def inspect(self, service: str) -> dict:
        """``docker inspect`` of a service's container."""
        return json.loads(run(["docker", "inspect", self.container_name(service)], timeout=30).check().stdout)[0]

    def environment_of(self, service: str) -> dict[str, str]:
        """The variables that a container was made with."""
        return dict(pair.split("=", 1) for pair in self.inspect(service)["Config"]["Env"])

    def slice_of(self, service: str) -> Slice:
        """The slice that a node's container was made with."""
        env, made = self.environment_of(service), self.inspect(service)["HostConfig"]
        limits = made["NanoCpus"] // 10**9, made["Memory"] >> 20
        gpu_ids = tuple(each for request in made.get("DeviceRequests") or () for each in request["DeviceIDs"])
        gpus = env.get("NODE_GRES", "").removeprefix("gpu:")
        return Slice(int(env["NODE_CPUS"]), int(env["NODE_MEMORY"]), *limits, gpus, gpu_ids)

    def port(self, service: str, inside: int) -> str:
        """The port on 127.0.0.1 that leads to the container's port ``inside``."""
        name = self.container_name(service)
        return run(["docker", "port", name, str(inside)], timeout=30).check().stdout.split()[0].rpartition(":")[2]

    def container_name(self, service: str) -> str:
        return f"{self.project}-{service}-1"

    def exec_argv(
        self, service: str, words: Sequence[str], user: str = "root", options: Sequence[str] = ()
    ) -> list[str]:
        return ["docker", "exec", "--user", user, *options, self.container_name(service), *words]

    def exec(self, service: str, words: Sequence[str], *, user: str = "root", timeout: float = 60) -> Result:
        return run(self.exec_argv(service, words, user), timeout=timeout)

    def remove(self, services: Sequence[str]) -> None:
        if services:
            names = [self.container_name(service) for service in services]
            run(["docker", "rm", "--force", "--volumes", *names], timeout=120).check()

    def last_lines(self, service: str, count: int = 8) -> str:
        return run(["docker", "logs", "--tail", str(count), self.container_name(service)], timeout=30).output
