"""One look at everything that the engine has. Whoever plans reads this, and asks the engine nothing more."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slurmbed.engine.client import Engine, EngineInfo
from slurmbed.engine.overlay import CHOICES_LABEL, CLONE_LABEL, OURS, SERVICES, SLICE_LABEL, SPEC_LABEL
from slurmbed.project import BASE_FILE
from slurmbed.spec.model import ClusterSpec
from slurmbed.spec.slices import Slice

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
MADE_BY_COMPOSE = "com.docker.compose.config-hash"  # label that only Compose's containers have, and no image
SSH_PORT_INSIDE, REST_PORT_INSIDE = 22, 6820


@dataclass(frozen=True)
class Container:
    """A container.

    ``state`` is Docker's word, ``status`` is for people, ``mounts`` maps its folders to the host's, ``created`` is in
    seconds since the epoch.
    """

    name: str
    project: str
    service: str
    state: str
    status: str
    image_id: str
    labels: Mapping[str, str]
    mounts: Mapping[str, str]
    ssh_port: int | None = None
    rest_port: int | None = None
    created: int = 0

    @classmethod
    def read(cls, listed: Mapping[str, Any]) -> "Container":
        labels = listed["Labels"] or {}
        ports = {each["PrivatePort"]: each.get("PublicPort") for each in listed["Ports"] or ()}
        return cls(
            name=min(listed["Names"], key=len).removeprefix("/"),  # links give a container more names, like /other/name
            # A container that somebody else made from one of the images has that image's labels, Compose's among them.
            project=labels.get(PROJECT_LABEL, "") if MADE_BY_COMPOSE in labels else "",
            service=labels.get(SERVICE_LABEL, "") if labels.get("com.docker.compose.oneoff") == "False" else "",
            state=listed["State"],
            status=listed["Status"],
            image_id=listed["ImageID"],
            labels=labels,
            mounts={each["Destination"]: each.get("Source", "") for each in listed["Mounts"] or ()},
            ssh_port=ports.get(SSH_PORT_INSIDE),
            rest_port=ports.get(REST_PORT_INSIDE),
            created=listed.get("Created", 0),
        )

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def node_number(self) -> int | None:
        prefix, _, number = self.service.rpartition("-")
        return int(number) if prefix == "node" and number.isdigit() else None

    @property
    def slice(self) -> Slice | None:
        """The slice that a node's container was made with; None for other containers."""
        text = self.labels.get(SLICE_LABEL)
        return Slice.model_validate_json(text) if text else None


@dataclass(frozen=True)
class Named:
    """A volume or a network; ``kind`` says which."""

    kind: str
    name: str
    labels: Mapping[str, str]

    @property
    def project(self) -> str:
        return self.labels.get(PROJECT_LABEL, "")


@dataclass(frozen=True)
class Snapshot:
    """The containers, volumes, networks and images of an engine at one time, seen from the cluster ``name``.

    Args:
        all_containers: those of all Compose projects, and of none.
        named: volumes and networks.
        images: ids of slurmbed's images by tag.
    """

    name: str
    info: EngineInfo
    all_containers: tuple[Container, ...]
    named: tuple[Named, ...]
    images: Mapping[str, str]

    @classmethod
    def take(cls, engine: Engine, name: str) -> "Snapshot":
        named = [Named("volume", each["Name"], each["Labels"] or {}) for each in engine.volumes()]
        named += [Named("network", each["Name"], each["Labels"] or {}) for each in engine.networks()]
        images = {tag: image["Id"] for image in engine.images(OURS) for tag in image["RepoTags"] or ()}
        containers = tuple(sorted(map(Container.read, engine.containers()), key=lambda each: each.name))
        return cls(name, engine.info, containers, tuple(named), images)

    @property
    def containers(self) -> list[Container]:
        """The containers of the cluster's services."""
        return [each for each in self.all_containers if each.project == self.name and each.service]

    @property
    def services(self) -> dict[str, Container]:
        return {each.service: each for each in self.containers}

    @property
    def nodes(self) -> dict[int, Container]:
        return {each.node_number: each for each in self.containers if each.node_number}

    @property
    def elastic_nodes(self) -> list[Container]:
        """The nodes whose containers run only while Slurm asks for them."""
        return [each for _, each in sorted(self.nodes.items()) if (node_slice := each.slice) and node_slice.elastic]

    @property
    def highest_node(self) -> int:
        return max(self.nodes, default=0)

    @property
    def exists(self) -> bool:
        """Whether the cluster has containers or volumes."""
        return bool(self.containers or any(each.project == self.name for each in self.named if each.kind == "volume"))

    @property
    def is_running(self) -> bool:
        """Whether all containers that every cluster has are running."""
        return all(name in self.services and self.services[name].is_running for name in SERVICES)

    @property
    def leftovers(self) -> list[str]:
        """The cluster's containers, volumes and networks."""
        return [f"container {each.name}" for each in self.containers] + [
            f"{each.kind} {each.name}" for each in self.named if each.project == self.name
        ]

    @property
    def networks(self) -> list[str]:
        """The names of the cluster's networks."""
        return [each.name for each in self.named if each.project == self.name and each.kind == "network"]

    @property
    def strangers(self) -> list[str]:
        """Containers, volumes and networks that have the cluster's name and were not made by slurmbed."""
        file = yaml.safe_load(BASE_FILE.read_text())
        own_names = {f"{self.name}_{each}" for each in (*file["volumes"], *file["networks"])}
        found = [(f"container {each.name}", each.labels) for each in self.all_containers if each.project == self.name]
        found += [
            (f"{each.kind} {each.name}", each.labels)
            for each in self.named
            if each.project == self.name or each.name in own_names
        ]
        return sorted(name for name, labels in found if labels.get(OURS) != "cluster")

    @property
    def made_from(self) -> Path | None:
        """The clone that containers and volumes were made from; None if there are none, or their labels do not tell."""
        everything = [each.labels for each in self.containers]
        everything += [each.labels for each in self.named if each.project == self.name]
        return next((Path(folder) for labels in everything if (folder := labels.get(CLONE_LABEL))), None)

    @property
    def choices(self) -> str | None:
        """The choices that the cluster was made with, as JSON; None if no container has them as a label."""
        return self._label(CHOICES_LABEL)

    @property
    def spec(self) -> ClusterSpec | None:
        """The configuration file that the cluster was made with; None if it was made without."""
        text = self._label(SPEC_LABEL)
        return ClusterSpec.model_validate_json(text) if text else None

    def _label(self, name: str) -> str | None:
        return next((text for each in self.containers if (text := each.labels.get(name))), None)

    @property
    def slices(self) -> dict[int, Slice]:
        """The slices of the cluster's nodes, by number."""
        return {number: node_slice for number, each in self.nodes.items() if (node_slice := each.slice)}

    @property
    def slices_of_others(self) -> list[Slice]:
        """The slices of the running nodes of other clusters."""
        others = (each for each in self.all_containers if each.is_running and each.project != self.name)
        return [node_slice for each in others if (node_slice := each.slice)]

    @property
    def others_on_images(self) -> list[Container]:
        """Containers of other projects, or of none, that were made from slurmbed's images."""
        return [each for each in self.all_containers if OURS in each.labels and each not in self.containers]

    def writers_to(self, workspace: Path) -> list[str]:
        """Other clusters whose login node has this workspace."""
        return sorted(
            each.project
            for each in self.all_containers
            if each.service == "login"
            and each.is_running
            and each.project != self.name
            and each.mounts.get("/workspace") == str(workspace)
        )
