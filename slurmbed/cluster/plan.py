"""What a cluster is to be: what the user asks for, what is there already, what the host has."""

from dataclasses import dataclass, replace
from pathlib import Path

from slurmbed.cluster import host as machine
from slurmbed.engine.compose import ROOT, Compose, Slice
from slurmbed.errors import UsageError
from slurmbed.process import run
from slurmbed.spec import gpus
from slurmbed.spec import load as config
from slurmbed.spec.model import Group, Shape

WORKSPACE = ROOT / "workspace"  # what nodes see as /workspace, unless told otherwise
IMAGE_KINDS = ("db", "control", "node")
DEFAULT_NODES = 2
DEFAULT_SLURM, DEFAULT_TORCH = "24.11", "debian"


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a cluster; empty means: as it is now, or the default."""

    name: str = "slurmbed"
    nodes: str = ""
    cpus: str = ""
    memory: str = ""
    gpus: str = ""
    slurm: str = ""
    torch: str = ""
    launchers: str = ""
    ssh_port: str = ""
    retain: str = ""
    workspace: str = ""
    config: str = ""
    adopt: str = ""
    least_nodes: int = 0  # where ``nodes`` is not said: as many as there are, but not fewer

    def check(self) -> None:
        """UsageError for what can be refused without asking an engine."""
        machine.check_name(self.name)
        if self.nodes:
            machine.whole_number("NODES", self.nodes, 1, machine.MAX_NODES)
        if self.gpus:
            gpus.canonical(self.gpus)
        if self.config:
            words = [name.upper() for name in ("nodes", "cpus", "memory", "gpus") if getattr(self, name)]
            if words:
                raise UsageError(f"CONFIG={self.config} says what {', '.join(words)} would say", "one or the other")
            config.load(self.config)
        if self.slurm:
            machine.suite(self.slurm)
        if self.torch not in ("", "debian", "pypi"):
            raise UsageError(f"TORCH={self.torch}: not known", "choose debian or pypi")
        if self.launchers not in ("", "0", "1"):
            raise UsageError(
                f"LAUNCHERS={self.launchers}: not known", "LAUNCHERS=0 builds nodes without them; 1 is the default"
            )
        for word in ("retain", "adopt"):
            if getattr(self, word) not in ("", "1"):
                name = word.upper()
                raise UsageError(f"{name}={getattr(self, word)}: not known", f"{name}=1, or leave it out")
        if self.workspace and not Path(self.workspace).is_dir():
            raise UsageError(f"WORKSPACE={self.workspace}: not a folder", "name the folder of your jobs")


@dataclass(frozen=True)
class Choices:
    """What a cluster is made with, once for all its containers; ``job_uid``: of alice, None until it is made."""

    slurm: str = DEFAULT_SLURM
    torch: str = DEFAULT_TORCH
    launchers: str = "1"
    ssh_port: str = ""
    workspace: Path = WORKSPACE
    clone: Path = ROOT
    job_uid: int | None = None

    @property
    def tag(self) -> str:
        return f"{self.slurm}-{self.torch}" + ("" if self.launchers == "1" else "-bare")

    @property
    def node_image(self) -> str:
        return f"slurmbed-node:{self.tag}"


@dataclass(frozen=True, kw_only=True)
class Plan(Choices):
    """A cluster to make, every choice made; ``exists``: containers or volumes of it are there."""

    exists: bool
    slices: list[Slice]
    shape: Shape | None = None

    def images_are_there(self) -> bool:
        names = [f"slurmbed-{kind}:{self.tag}" for kind in IMAGE_KINDS]
        return run(["docker", "image", "inspect", "--format", ".", *names], timeout=30).ok

    def environment(self) -> dict[str, str]:
        """The variables of docker-compose.yml."""
        return {
            "TAG": self.tag,
            "SUITE": machine.suite(self.slurm),
            "TORCH": self.torch,
            "LAUNCHERS": self.launchers,
            "CA_BUNDLE": machine.ca_bundle(),
            "CLONE": str(self.clone),
            "JOB_UID": str(self.job_uid),
            "SSH_PORT": self.ssh_port,
            "SSH_PUBLIC_KEY": machine.ssh_public_key(),
            "WORKSPACE": str(self.workspace),
        }


def make_plan(settings: Settings, compose: Compose, host: machine.Host) -> Plan:
    """What the user asks for; what is not said stays as the containers are now, or is the default.

    So a cluster can grow without its nodes being made anew under their jobs.

    Raises:
        UsageError: it does not fit on the host, or would change nodes that are there.
    """
    shape = choose_shape(settings, compose)
    asked = shape.size if shape and settings.config else settings.nodes
    usual, there = shape.size if shape else DEFAULT_NODES, compose.highest_node()
    if there and all(c.state == "created" for c in compose.containers()):
        there = max(there, usual)  # they are of a start that was killed, perhaps before it had made them all
    nodes = asked or max(there, settings.least_nodes) or usual
    count = machine.whole_number("NODES", nodes, 1, machine.MAX_NODES)
    now = choices_so_far(compose)
    workspace = Path(settings.workspace).resolve() if settings.workspace else now.workspace
    return Plan(
        exists=bool(compose.containers() or compose.volumes()),
        slices=make_slices(settings, compose, host, count, shape),
        slurm=settings.slurm or now.slurm,
        torch=settings.torch or now.torch,
        launchers=settings.launchers or now.launchers,
        ssh_port=settings.ssh_port or now.ssh_port,
        workspace=workspace,
        clone=now.clone,
        job_uid=now.job_uid or machine.job_uid(workspace),
        shape=shape,
    )


def choose_shape(settings: Settings, compose: Compose) -> Shape | None:
    """The shape that the containers have; for a new cluster that of the file, if there is one.

    Raises:
        UsageError: the containers were made with another one, or with none.
    """
    there, asked = compose.shape(), config.load(settings.config) if settings.config else None
    again = f"make clean NAME={settings.name}, then make up"
    if asked and compose.containers() and asked != there:
        made = "another file, or this one before it was changed" if there else "no CONFIG"
        raise UsageError(f"CONFIG={settings.config}: the cluster was made with {made}", again)
    if there and (settings.cpus or settings.memory or settings.gpus):
        raise UsageError("CPUS, MEMORY and GPUS: the cluster was made with a CONFIG, which says them", again)
    return asked or there


def choices_so_far(compose: Compose) -> Choices:
    """The choices that the cluster's login node was made with; the defaults if there is none.

    Volumes that are left know the clone, and nothing else.
    """
    clone = compose.made_from() or ROOT
    if not any(c.service == "login" for c in compose.containers()):
        return Choices(clone=clone)
    login = compose.inspect("login")
    slurm, torch, *bare = login["Config"]["Image"].rpartition(":")[2].split("-")
    return Choices(
        slurm=slurm,
        torch=torch,
        launchers="0" if bare else "1",
        ssh_port=login["HostConfig"]["PortBindings"]["22/tcp"][0]["HostPort"],
        workspace=next(Path(m["Source"]) for m in login["Mounts"] if m["Destination"] == "/workspace"),
        clone=clone,
        job_uid=int(compose.environment_of("login")["JOB_UID"]),
    )


def make_slices(
    settings: Settings, compose: Compose, host: machine.Host, count: int, shape: Shape | None
) -> list[Slice]:
    """The slice of each of ``count`` nodes: nodes that are there keep theirs, new ones share what is left."""
    there = {c.node_number: compose.slice_of(c.service) for c in compose.containers() if c.node_number}
    kept = {number: part for number, part in there.items() if number <= count}
    if shape:
        return shaped_slices(shape, kept, host, count)
    taken = sum(part.memory for part in kept.values())
    # A cluster made with fewer CPUs than GPUs can start again and grow.
    least_cpus = min([gpus.count(gpu_word(settings, kept)), *(part.cpus for part in kept.values())])
    new = machine.slice_for(host, count, settings.cpus, settings.memory, taken, len(kept), least_cpus)
    for part in kept.values():
        if (settings.cpus and part.cpus != new.cpus) or (settings.memory and part.memory != new.memory):
            raise UsageError(
                f"the nodes that are there have {part.cpus} CPUs and {part.memory} MiB",
                f"CPUS and MEMORY are chosen when a cluster is made: make clean NAME={settings.name}, then make up",
            )
    return with_gpus(settings, kept, new, count)


def gpu_word(settings: Settings, kept: dict[int, Slice]) -> str:
    """The GPUs of each node: what the user asks for, or what nodes that are kept have."""
    if settings.gpus:
        return gpus.resolve(gpus.canonical(settings.gpus))
    return next((part.gpus for part in kept.values()), "")


def with_gpus(settings: Settings, kept: dict[int, Slice], new: Slice, count: int) -> list[Slice]:
    """The slices of ``count`` nodes, by number; new ones have as many GPUs as those that are kept, but not the same."""
    word, there = gpu_word(settings, kept), gpu_word(Settings(), kept)
    if kept and word != there:
        raise UsageError(
            f"GPUS={settings.gpus}: the nodes that are there were made with GPUS={there or 0}",
            f"GPUS is chosen when a cluster is made: make clean NAME={settings.name}, then make up",
        )
    taken = {gpu_id for part in kept.values() for gpu_id in part.gpu_ids}
    shares = iter(gpus.share_out(word, count - len(kept), taken))
    numbers = range(1, count + 1)
    return [kept[n] if n in kept else replace(new, gpus=word, gpu_ids=next(shares)) for n in numbers]


def shaped_slices(shape: Shape, kept: dict[int, Slice], host: machine.Host, count: int) -> list[Slice]:
    """The slices of ``count`` nodes, each as its group says; what a group leaves open is shared out evenly.

    Raises:
        UsageError: the host has too little memory or too few GPUs.
    """
    given = sum(group.count * group.memory for group in shape.nodes if group.memory)
    open_nodes = sum(group.count for group in shape.nodes if not group.memory)
    share = (host.memory * 3 // 4 - given) // max(open_nodes, 1)
    if count > shape.size and not shape.nodes[-1].memory:  # nodes beyond the file's: what is left is theirs
        taken = sum(part.memory for part in kept.values())
        share = min(share, (host.memory - taken) // max(count - len(kept), 1))
    slices: list[Slice] = []
    for number in range(1, count + 1):
        group = shape.group_of(number)
        part = kept.get(number) or group_slice(group, host, shape.size, share)
        if number not in kept and part.gpus:
            others = {gpu_id for each in (*slices, *kept.values()) for gpu_id in each.gpu_ids}
            (gpu_ids,) = gpus.share_out(part.gpus, 1, others)
            part = replace(part, gpu_ids=gpu_ids)
        slices.append(part)
    total = sum(part.memory for part in slices)
    if total > host.memory:
        raise UsageError(f"{count} nodes have {total} MiB; the host has {host.memory} MiB", "give them less memory")
    return slices


def group_slice(group: Group, host: machine.Host, nodes: int, share: int) -> Slice:
    memory = group.memory or share
    cpus = str(group.cpus or max(1, host.cpus // nodes, gpus.count(group.gpus)))
    if memory < 1:
        raise UsageError(f"the other groups leave no memory for the nodes of {group.name}", "give them less memory")
    try:
        part = machine.slice_for(host, 1, cpus, f"{memory}M")
    except UsageError as error:
        raise UsageError(f"a node of the group {group.name}: {error.reason}", error.hint) from None
    return replace(part, gpus=group.gpus, features=",".join((group.name, *group.features)))
