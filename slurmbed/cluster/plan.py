"""The plan of a cluster, from settings, snapshot and host. Pure: values in, a plan out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import yaml

from slurmbed.cluster import images
from slurmbed.cluster.host import Host, caller, job_uid
from slurmbed.cluster.settings import DEFAULT_NODES, Choices, Settings
from slurmbed.engine.overlay import CHOICES_LABEL, REGISTRY, REST, SERVICES, SPEC_LABEL, overlay, with_arguments
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import UsageError
from slurmbed.project import BASE_FILE, command, option
from slurmbed.spec.model import USERS, ClusterSpec, User
from slurmbed.spec.slices import Slice, plain_slices, slices_of_spec, with_own_cpus

KEPT = ("slurm", "flavor", "torch", "nvidia_smi", "cgroups", "rest", "containers", "ssh_port", "workspace", "mount")
"""Settings that are choices, once for all containers."""
REGISTRY_PORT = 5000  # of 127.0.0.1, if it is free
FILE_LABEL = "org.slurmbed.file"  # digest of what docker-compose.yml says


@dataclass(frozen=True)
class Plan:
    """A cluster to make, with every choice made.

    Args:
        exists: it has containers or volumes already.
        maps_users, selinux, apparmor: as the engine's ``Host``.
    """

    choices: Choices
    slices: Sequence[Slice]
    spec: ClusterSpec | None
    exists: bool
    maps_users: bool = False
    selinux: bool = False
    apparmor: bool = False

    @property
    def lasting(self) -> int:
        """How many nodes always run; they have the lowest numbers."""
        return sum(not node_slice.elastic for node_slice in self.slices)

    @property
    def services(self) -> tuple[str, ...]:
        """All but the nodes."""
        added = {REST: self.choices.rest, REGISTRY: self.choices.containers}
        return (*SERVICES, *(name for name, is_wanted in added.items() if is_wanted))

    @property
    def users(self) -> Sequence[User]:
        """The first owns the workspace."""
        return self.spec.users if self.spec else USERS

    @property
    def uids(self) -> dict[str, int]:
        """By name. The first user is the host's, unless the file says otherwise; others without a uid count on."""
        given = [each.uid for each in self.users]
        free = (uid for uid in count(self.choices.job_uid or 1000) if uid not in given)
        return {each.name: each.uid or next(free) for each in self.users}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every container, which are the only record of a cluster."""
        file = digest(json.dumps(yaml.safe_load(BASE_FILE.read_text())))
        spec = {SPEC_LABEL: self.spec.model_dump_json(exclude_defaults=True, by_alias=True)} if self.spec else {}
        return {CHOICES_LABEL: self.choices.model_dump_json(), FILE_LABEL: file, **spec}

    @cached_property
    def overlay(self) -> dict:
        made = overlay(
            self.slices,
            self.spec,
            self.labels,
            shared=self.choices.shared,
            selinux=self.selinux,
            cgroups=self.choices.cgroups,
            rest=self.choices.rest,
            registry_port=self.choices.registry_port,
            apparmor=self.apparmor,
        )
        return with_arguments(made)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of docker-compose.yml."""
        return {
            **images.build_environment(self.choices),
            "SLURMBED_CLONE": str(self.choices.clone),
            "SLURMBED_USERS": " ".join(f"{name}:{uid}" for name, uid in self.uids.items()),
            "SLURMBED_NVIDIA_SMI": str(int(self.choices.nvidia_smi)),
            "SLURMBED_SSH_PORT": str(self.choices.ssh_port or ""),
            "SLURMBED_WORKSPACE": str(self.choices.workspace),
            "SLURMBED_KEEP_OWNER": "1" if self.maps_users else "",
            "SLURMBED_REGISTRY_PORT": str(self.choices.registry_port or ""),
            "COMPOSE_PROFILES": ",".join(name for name in ("rest", "containers") if getattr(self.choices, name)),
        }

    def is_met_by(self, snapshot: Snapshot) -> bool:
        """Whether exactly the containers of the plan run, as the plan says."""
        made = snapshot.containers
        wanted = {image for kind in images.KINDS if (image := snapshot.images.get(images.image(kind, self.choices)))}
        return (
            snapshot.slices == dict(enumerate(self.slices, start=1))
            and snapshot.is_running
            and (REST in snapshot.services) == self.choices.rest
            and (REGISTRY in snapshot.services) == self.choices.containers
            and all(each.is_running for each in made if each not in snapshot.elastic_nodes)
            and all(each.image_id in wanted for each in made)
            and all(each.labels.get(key) == text for each in made for key, text in self.labels.items())
        )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_plan(
    settings: Settings, asked_spec: ClusterSpec | None, snapshot: Snapshot, host: Host, keep_images: bool = False
) -> Plan:
    """The cluster that the user asks for. Options that are not given keep the containers' values, or get the defaults.

    So a cluster can grow without its nodes being recreated under their jobs.

    Args:
        asked_spec: the contents of the configuration file of ``settings``, if there is one.
        keep_images: keep the images that the cluster runs on, although the files that they are built from have changed.

    Raises:
        UsageError: the cluster does not fit on the host, or existing nodes would change.
    """
    spec = choose_spec(settings, asked_spec, snapshot)
    size = spec.size if spec else DEFAULT_NODES
    existing = snapshot.highest_node
    if existing and all(each.state == "created" for each in snapshot.containers):
        existing = max(existing, size)  # a start was killed, perhaps before it had made them all
    asked = size if settings.config else settings.nodes
    count = asked or max(existing, settings.least_nodes) or size
    plan = Plan(
        choices=choose(settings, snapshot, host, keep_images),
        slices=choose_slices(settings, snapshot, host, count, spec),
        spec=spec,
        exists=snapshot.exists,
        maps_users=host.maps_users,
        selinux=host.selinux,
        apparmor=host.apparmor,
    )
    refuse_homes(plan)
    return plan


def refuse_homes(plan: Plan) -> None:
    """UsageError for a folder of the host in the place of a user's home, which the cluster writes keys into."""
    for folder in plan.choices.shared:
        if folder.parent == Path("/home") and folder.name in plan.uids:
            reason = f"{folder} is the home of the cluster's user {folder.name} and cannot be replaced"
            raise UsageError(reason, "share a folder in it")


def choose_spec(settings: Settings, asked: ClusterSpec | None, snapshot: Snapshot) -> ClusterSpec | None:
    """What the containers were made with; for a new cluster what the configuration file says, if there is one.

    Raises:
        UsageError: the containers were made with another one, or with none.
    """
    made = snapshot.spec
    again = f"{command('clean', name=settings.name)}, then {command('up', name=settings.name)}"
    if asked and snapshot.containers and asked != made:
        reason = (
            "a different configuration file, or an earlier version of this one" if made else "no configuration file"
        )
        raise UsageError(f"{option('config', settings.config)}: the cluster was made with {reason}", again)
    if made and (settings.cpus or settings.memory or settings.gpus is not None):
        raise UsageError("CPUs, memory and GPUs cannot be changed: the cluster's configuration file sets them", again)
    return asked or made


def choose_slices(
    settings: Settings, snapshot: Snapshot, host: Host, count: int, spec: ClusterSpec | None
) -> list[Slice]:
    kept, asked = snapshot.slices, settings.gpus
    if spec:
        slices = slices_of_spec(spec, host, count, kept)
    else:
        cpus, memory, name = settings.cpus, settings.memory, settings.name
        slices = plain_slices(host, count, kept, cpus=cpus, memory=memory, asked=asked, name=name)
    return with_own_cpus(slices, kept, host.cpu_numbers, snapshot.slices_of_others)


def choices_so_far(snapshot: Snapshot) -> Choices:
    """What the cluster was made with; the defaults if there are no containers.

    Volumes that are left know the clone, and nothing else.
    """
    if snapshot.choices:
        return Choices.model_validate_json(snapshot.choices)
    return Choices(clone=snapshot.made_from) if snapshot.made_from else Choices()


def choose(settings: Settings, snapshot: Snapshot, host: Host, keep_images: bool) -> Choices:
    now = choices_so_far(snapshot)
    chosen = with_asked(now, settings)
    if chosen.cgroups:
        host.check_cgroups()
    uid = now.job_uid or job_uid(Path(chosen.workspace), host.maps_users)
    port = (now.registry_port or host.free_port(REGISTRY_PORT)) if chosen.containers else None
    made = {"registry_port": port, "job_uid": uid, "owner": now.owner or caller(), "digest": images.digest()}
    return chosen.model_copy(update=made | ({"digest": now.digest} if keep_images and now.digest else {}))


def with_asked(now: Choices, settings: Settings) -> Choices:
    """Choices with what the user asks for. UsageError for torch in a flavor that has none."""
    asked = {key: value for key in KEPT if (value := getattr(settings, key)) is not None}
    chosen = now.model_copy(update=asked)
    if settings.torch and not chosen.has_torch:
        reason = f"{option('torch', settings.torch)}: the flavor slim has no torch"
        raise UsageError(reason, f"{option('flavor', 'torch')}, or {option('flavor', 'full')}")
    return chosen
