"""What a cluster is to be: what the user asks for, what is there already, what the host has."""

from dataclasses import dataclass, replace
from pathlib import Path

from slurmbed import gpus
from slurmbed import host as machine
from slurmbed.compose import ROOT, Compose, Slice
from slurmbed.errors import UsageError
from slurmbed.run import run

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
    ssh_port: str = ""
    retain: str = ""
    workspace: str = ""

    def check(self) -> None:
        """UsageError for what can be refused without asking an engine."""
        machine.check_name(self.name)
        if self.nodes:
            machine.whole_number("NODES", self.nodes, 1, machine.MAX_NODES)
        if self.gpus:
            gpus.canonical(self.gpus)
        if self.slurm:
            machine.suite(self.slurm)
        if self.torch not in ("", "debian", "pypi"):
            raise UsageError(f"TORCH={self.torch}: not known", "choose debian or pypi")
        if self.retain not in ("", "1"):
            raise UsageError(f"RETAIN={self.retain}: not known", "RETAIN=1, or leave it out")
        if self.workspace and not Path(self.workspace).is_dir():
            raise UsageError(f"WORKSPACE={self.workspace}: not a folder", "name the folder of your jobs")


@dataclass(frozen=True)
class Plan:
    """A cluster to make, every choice made; ``exists``: containers or volumes of it are there."""

    exists: bool
    slices: list[Slice]
    slurm: str
    torch: str
    ssh_port: str
    workspace: Path
    job_uid: int

    @property
    def tag(self) -> str:
        return f"{self.slurm}-{self.torch}"

    @property
    def node_image(self) -> str:
        return f"slurmbed-node:{self.tag}"

    def images_are_there(self) -> bool:
        names = [f"slurmbed-{kind}:{self.tag}" for kind in IMAGE_KINDS]
        return run(["docker", "image", "inspect", "--format", ".", *names], timeout=30).ok

    def environment(self) -> dict[str, str]:
        """The variables of docker-compose.yml."""
        return {
            "TAG": self.tag,
            "SUITE": machine.suite(self.slurm),
            "TORCH": self.torch,
            "CA_BUNDLE": machine.ca_bundle(),
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
    nodes = settings.nodes or compose.highest_node() or DEFAULT_NODES
    count = machine.whole_number("NODES", nodes, 1, machine.MAX_NODES)
    now = choices_so_far(compose)
    workspace = Path(settings.workspace).resolve() if settings.workspace else now["workspace"]
    return Plan(
        exists=bool(compose.containers() or compose.volumes()),
        slices=make_slices(settings, compose, host, count),
        slurm=settings.slurm or now["slurm"],
        torch=settings.torch or now["torch"],
        ssh_port=settings.ssh_port or now["ssh_port"],
        workspace=workspace,
        job_uid=now["job_uid"] or machine.job_uid(workspace),
    )


def choices_so_far(compose: Compose) -> dict:
    """The choices that the cluster's login node was made with; the defaults if there is none."""
    if not any(c.service == "login" for c in compose.containers()):
        defaults = {"slurm": DEFAULT_SLURM, "torch": DEFAULT_TORCH, "ssh_port": "", "workspace": WORKSPACE}
        return {**defaults, "job_uid": None}
    login = compose.inspect("login")
    slurm, _, torch = login["Config"]["Image"].rpartition(":")[2].partition("-")
    return {
        "slurm": slurm,
        "torch": torch,
        "ssh_port": login["HostConfig"]["PortBindings"]["22/tcp"][0]["HostPort"],
        "workspace": next(Path(m["Source"]) for m in login["Mounts"] if m["Destination"] == "/workspace"),
        "job_uid": int(compose.environment_of("login")["JOB_UID"]),
    }


def make_slices(settings: Settings, compose: Compose, host: machine.Host, count: int) -> list[Slice]:
    """The slice of each of ``count`` nodes: nodes that are there keep theirs, new ones share what is left."""
    there = {c.node_number: compose.slice_of(c.service) for c in compose.containers() if c.node_number}
    kept = {number: part for number, part in there.items() if number <= count}
    new = machine.slice_for(
        host, count, settings.cpus, settings.memory, sum(part.memory for part in kept.values()), len(kept)
    )
    for part in kept.values():
        if (settings.cpus and part.cpus != new.cpus) or (settings.memory and part.memory != new.memory):
            raise UsageError(
                f"the nodes that are there have {part.cpus} CPUs and {part.memory} MiB",
                f"CPUS and MEMORY are chosen when a cluster is made: make clean NAME={settings.name}, then make up",
            )
    return with_gpus(settings, kept, new, count)


def with_gpus(settings: Settings, kept: dict[int, Slice], new: Slice, count: int) -> list[Slice]:
    """The slices of ``count`` nodes, by number; new ones have as many GPUs as those that are kept, but not the same."""
    there = next((part.gpus for part in kept.values()), "")
    word = gpus.canonical(settings.gpus) if settings.gpus else there
    if kept and word != there:
        raise UsageError(
            f"GPUS={settings.gpus}: the nodes that are there were made with GPUS={there or 0}",
            f"GPUS is chosen when a cluster is made: make clean NAME={settings.name}, then make up",
        )
    taken = {gpu_id for part in kept.values() for gpu_id in part.gpu_ids}
    shares = iter(gpus.share_out(word, count - len(kept), taken))
    numbers = range(1, count + 1)
    return [kept[n] if n in kept else replace(new, gpus=word, gpu_ids=next(shares)) for n in numbers]
