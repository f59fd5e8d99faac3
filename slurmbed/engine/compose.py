"""Docker and Docker Compose: the project's containers, by name. No state is kept in files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from slurmbed.process import Result, run
from slurmbed.spec import gpus, slurm_conf
from slurmbed.spec.model import Shape

ROOT = Path(__file__).resolve().parents[2]
BASE_FILE = ROOT / "docker-compose.yml"
NODES_IN_BASE_FILE = 2
OURS = "org.slurmbed"  # label: "cluster" on what belongs to a cluster, "image" and "base" on images
CLONE_LABEL = "org.slurmbed.clone"  # the folder that a cluster was made from
SHAPE_LABEL = "org.slurmbed.spec.model"  # what a cluster is, on its containers: there is no other record
MADE_BY_COMPOSE = "com.docker.compose.config-hash"  # label that only Compose's containers have, and no image
IMAGES_PROJECT = "slurmbed-images"  # Compose labels images with the project that built them; no cluster is called so


@dataclass(frozen=True)
class Slice:
    """What a node says it has, and what its container is held to; memory in MiB, a limit of 0 is none.

    ``gpus`` is "" (none), "2", "h100:2", "emulated:2" or "emulated:h100:2"; ``gpu_ids`` are the host's of them, by
    nvidia-smi's numbers, and none of emulated ones.
    """

    cpus: int
    memory: int
    cpu_limit: int
    memory_limit: int
    gpus: str = ""
    gpu_ids: tuple[str, ...] = ()
    features: str = ""  # with commas between, the name of its group first

    @property
    def record(self) -> str:
        """What a node's record in Slurm says of it."""
        gres = [f"Gres={gpus.gres(self.gpus)}"] if self.gpus else []
        feature = [f"Feature={self.features}"] if self.features else []
        return " ".join([f"CPUs={self.cpus}", f"RealMemory={self.memory}", *gres, *feature])


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


def overlay(slices: Sequence[Slice], base_file: Path = BASE_FILE, shape: Shape | None = None) -> dict:
    """What makes docker-compose.yml a cluster of ``len(slices)`` nodes, each with its slice of the host."""
    services: dict[str, dict] = {}
    gres = [gpus.gres(each.gpus) for each in (shape.nodes if shape else slices[:1])]
    if any(gres):  # slurmctld must know all that nodes have
        services["slurmctld"] = {"environment": {"NODE_GRES": ",".join(most_of_each_type(gres))}}
    for number, part in enumerate(slices, start=1):
        service = services[f"node-{number}"] = {
            "environment": {"NODE_CPUS": str(part.cpus), "NODE_MEMORY": str(part.memory)},
            "cpus": part.cpu_limit,
            "mem_limit": f"{part.memory_limit}m",
        }
        if part.gpus:
            service["environment"]["NODE_GRES"] = gpus.gres(part.gpus)
            service.update(gpu_devices(part))
        if part.features:
            groups = groups_before(slices[:number])
            service["environment"].update(NODE_FEATURES=part.features, NODES_BEFORE=groups)
        if number > NODES_IN_BASE_FILE:
            service["extends"] = {"file": str(base_file), "service": "node-1"}
            service["hostname"] = f"node-{number}"
    for number in range(len(slices) + 1, NODES_IN_BASE_FILE + 1):
        services[f"node-{number}"] = {"profiles": ["left-out"]}
    if shape:
        add_shape(services, shape, len(slices))
    return {"services": services}


def most_of_each_type(gres: Sequence[str]) -> list[str]:
    """The largest of gpu:h100:4 and gpu:h100:8, and the like for each other type."""
    most: dict[str, int] = {}
    for kind, _, number in (each.rpartition(":") for each in gres if each):
        most[kind] = max(most.get(kind, 0), int(number))
    return [f"{kind}:{number}" for kind, number in most.items()]


def groups_before(slices: Sequence[Slice]) -> str:
    """A line for each run of nodes that come before the last one's group: the number of its last node, its record."""
    ends = [i for i in range(len(slices) - 1) if slices[i].features != slices[i + 1].features]
    return "\n".join(f"{i + 1} {slices[i].record}" for i in ends)


def add_shape(services: dict[str, dict], shape: Shape, nodes: int) -> None:
    """Give slurmctld, login and the nodes the shape's lines of slurm.conf and its mounts, and write down what it is."""
    kept = verbatim({SHAPE_LABEL: shape.model_dump_json(exclude_defaults=True)})
    environment = verbatim({"SLURM_CONF_LINES": "\n".join(slurm_conf.lines(shape))})
    mounts = [
        {"type": "bind", "source": mount.host, "target": mount.container, "read_only": mount.read_only}
        for mount in shape.mounts
    ]
    workers = ["login", *(f"node-{number}" for number in range(1, nodes + 1))]
    for name in ("slurmctld", *workers):
        service = services.setdefault(name, {})
        service["labels"] = kept
        service["environment"] = {**service.get("environment", {}), **environment}
        if name in workers and mounts:
            service["volumes"] = [verbatim(mount) for mount in mounts]


def verbatim(words: dict) -> dict:
    """Compose puts variables in for ``$NAME``; ``$$`` is a dollar."""
    return {key: value.replace("$", "$$") if isinstance(value, str) else value for key, value in words.items()}


def gpu_devices(part: Slice) -> dict:
    """The keys of a service that give its container the GPUs; Slurm takes any device file for an emulated one."""
    if not part.gpu_ids:
        return {"devices": [f"/dev/null:/dev/emulated-gpu{i}" for i in range(gpus.count(part.gpus))]}
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

    def with_overlay(
        self, slices: Sequence[Slice], *words: str, timeout: float, capture: bool = True, shape: Shape | None = None
    ) -> Result:
        """``docker compose WORDS`` on docker-compose.yml and the overlay for these nodes, given on stdin."""
        argv = ["docker", "compose", "-p", self.project, "-f", str(BASE_FILE), "-f", "-", *words]
        stdin = json.dumps(overlay(slices, shape=shape))
        return run(argv, timeout=timeout, env=self.env, stdin=stdin, capture=capture)

    def by_name(self, *words: str, timeout: float, capture: bool = True) -> Result:
        """``docker compose WORDS`` on the containers that are there, whatever file they came from."""
        argv = ["docker", "compose", "--project-directory", "/", "-p", self.project, *words]
        return run(argv, timeout=timeout, capture=capture)

    def containers(self) -> list[Container]:
        """The containers that Compose made for the project's services.

        A container that somebody else made from one of the images has that image's labels, Compose's among them, and is
        none of these.
        """
        rows = self.list_containers('{{.Label "com.docker.compose.service"}}', "{{.State}}", "{{.Status}}")
        return sorted((Container(*row) for row in rows), key=lambda c: c.service)

    def list_containers(self, *columns: str, all_kinds: bool = False) -> list[list[str]]:
        """These columns of ``docker ps --format`` for each of the project's containers.

        Args:
            all_kinds: with those of `docker compose run`, which are no service's.
        """
        labels = [f"com.docker.compose.project={self.project}", MADE_BY_COMPOSE]
        labels += [] if all_kinds else ["com.docker.compose.oneoff=False"]
        argv = ["docker", "ps", "--all", *(f"--filter=label={label}" for label in labels), "--format"]
        return [line.split("\t") for line in run([*argv, "\t".join(columns)], timeout=30).check().stdout.splitlines()]

    def strangers(self) -> list[str]:
        """Containers, volumes and networks that have the project's name and are no part of a cluster of slurmbed."""
        columns = ("{{.Name}}", '{{.Label "com.docker.compose.project"}}', f'{{{{.Label "{OURS}"}}}}')
        containers = self.list_containers("{{.Names}}", columns[2], all_kinds=True)
        found = [(f"container {name}", mark) for name, mark in containers]
        file = yaml.safe_load(BASE_FILE.read_text())
        own_names = [f"{self.project}_{name}" for name in (*file["volumes"], *file["networks"])]
        for kind in ("volume", "network"):
            listed = run(["docker", kind, "ls", "--format", "\t".join(columns)], timeout=30).check().stdout
            for name, project, mark in (line.split("\t") for line in listed.splitlines()):
                if project == self.project or name in own_names:
                    found.append((f"{kind} {name}", mark))
        return sorted(name for name, mark in found if mark != "cluster")

    def made_from(self) -> Path | None:
        """The clone that containers and volumes were made from; None if there are none, or they do not say."""
        form = f'{{{{.Label "{CLONE_LABEL}"}}}}'
        folders = [folder for (folder,) in self.list_containers(form)] + self.list_names("volume", form)
        return next((Path(folder) for folder in folders if folder), None)

    def shape(self) -> Shape | None:
        """The shape that the containers were made with; None if there are none, or they were made without a file."""
        written = next((text for (text,) in self.list_containers(f'{{{{.Label "{SHAPE_LABEL}"}}}}') if text), None)
        return Shape.model_validate_json(written) if written else None

    def highest_node(self) -> int:
        """The highest number of the nodes that are there; 0 if there is none."""
        return max((c.node_number or 0 for c in self.containers()), default=0)

    def volumes(self) -> list[str]:
        return self.list_names("volume")

    def leftovers(self) -> list[str]:
        """Containers, volumes and networks of the project that are there."""
        containers = [f"container {self.container_name(c.service)}" for c in self.containers()]
        others = [f"{kind} {name}" for kind in ("volume", "network") for name in self.list_names(kind)]
        return containers + others

    def list_names(self, kind: str, form: str = "{{.Name}}") -> list[str]:
        """A line of ``docker volume ls --format`` or ``docker network ls --format`` for each of the project's."""
        label = f"label=com.docker.compose.project={self.project}"
        argv = ["docker", kind, "ls", "--filter", label, "--format", form]
        return run(argv, timeout=30).check().stdout.splitlines()

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
        word = gpus.from_gres(env.get("NODE_GRES", ""), gpu_ids)
        features = env.get("NODE_FEATURES", "")
        return Slice(int(env["NODE_CPUS"]), int(env["NODE_MEMORY"]), *limits, word, gpu_ids, features)

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
