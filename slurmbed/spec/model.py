"""A cluster's configuration file: node groups, partitions, QOS, accounts, users, mounts."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    create_model,
)

from slurmbed.spec.gpus import MAX_GPUS, NO_GPUS, Gpus
from slurmbed.spec.memory import parse_memory

MAX_CPUS = 1024  # of one node

Location = tuple[str | int, ...]
"""Where in the file: keys and places in lists, as pydantic gives them."""


def check_time(text: str) -> str:
    """A time as Slurm writes it. https://slurm.schedmd.com/sbatch.html#OPT_time"""
    if not re.fullmatch(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}|UNLIMITED", text):
        raise ValueError(f"{text!r} is not a time: write 30 (minutes), 1:30:00, 2-12:00:00 or UNLIMITED")
    return text


def check_partition_name(text: str) -> str:
    """Any name that Slurm takes, unless a line of slurm.conf, or a list of partitions, would end in it."""
    if not re.fullmatch(r"""[^\s,#="'\\]+""", text) or text.lower() == "default":
        raise ValueError(f"{text!r} is not a partition's name: choose one of letters, digits, '-', '_' and '.'")
    return text


def parse_gres(value: Any) -> Any:
    """GPUs from gpu:8, gpu:h100:8 or gpu:emulated:h100:8."""
    if not isinstance(value, str) or not value:
        return value or NO_GPUS
    try:
        if not value.startswith("gpu:"):
            raise ValueError
        return Gpus.parse(value.removeprefix("gpu:"))
    except ValueError:
        raise ValueError(f"{value!r}: write gpu:8, gpu:h100:8 or gpu:emulated:h100:8, up to {MAX_GPUS}") from None


def check_line(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z]+=[^\n]+", text):
        raise ValueError(f"{text!r} is not a line of slurm.conf: write Key=value")
    return text


def check_limit(text: str) -> str:
    """A limit's value: a number, a time, or trackable resources like cpu=4,gres/gpu=2."""
    if not re.fullmatch(r"[\w/:.-]+(=\d+[KMGT]?(,[\w/:.-]+=\d+[KMGT]?)*)?", text):
        raise ValueError(f"{text!r} is not a limit: write a number, a time, or cpu=4,gres/gpu=2")
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,30}$")]
PartitionName = Annotated[str, AfterValidator(check_partition_name)]
Time = Annotated[str, AfterValidator(check_time)]
Memory = Annotated[int, BeforeValidator(lambda value: parse_memory(value) if isinstance(value, str) else value)]
Count = Annotated[int, Field(ge=1, le=256)]
Gres = Annotated[Gpus, BeforeValidator(parse_gres), PlainSerializer(lambda gpus: f"gpu:{gpus}" if gpus else "")]
Tier = Annotated[int, Field(ge=0, le=65533)]
PreemptMode = Literal["requeue", "cancel"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeGroup(Strict):
    """Nodes that are alike; memory in MiB for each. Slurm knows the group as a node set and as a feature.

    Jobs ask for gpu:h100:8 also where ``gres`` is gpu:emulated:h100:8.
    """

    name: Name
    count: Count = 1
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)] | None = None
    sockets: Annotated[int, Field(ge=1, le=64)] | None = None
    cores: Annotated[int, Field(ge=1, le=1024)] | None = None  # of each socket
    threads: Annotated[int, Field(ge=1, le=8)] | None = None  # of each core
    memory: Memory | None = None
    gpus: Gres = Field(default=NO_GPUS, alias="gres")
    features: list[Name] = []
    elastic: bool = False  # containers run while Slurm has jobs for them

    @property
    def threads_in_all(self) -> int:
        """Of all cores of all sockets; 0 if the file does not set them."""
        if not (self.sockets or self.cores or self.threads):
            return 0
        sockets, threads = self.sockets or 1, self.threads or 1
        return sockets * threads * (self.cores or max(1, (self.cpus or 1) // (sockets * threads)))

    @property
    def topology(self) -> str:
        """As in Slurm's record; "" if the file does not set it."""
        if not self.threads_in_all:
            return ""
        sockets, threads = self.sockets or 1, self.threads or 1
        cores = self.threads_in_all // (sockets * threads)
        return f"Sockets={sockets} CoresPerSocket={cores} ThreadsPerCore={threads}"


class Partition(Strict):
    name: PartitionName
    nodes: list[Name] = Field(min_length=1)  # names of groups
    default: bool = False
    default_time: Time | None = None
    max_time: Time | None = None
    priority_tier: Tier | None = None
    preempt_mode: PreemptMode | None = None  # what happens to its jobs when a higher tier needs their nodes


LIMITS = (
    *("GrpJobs", "GrpSubmitJobs", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpWall", "MaxJobsPerAccount"),
    *("MaxJobsPerUser", "MaxSubmitJobsPerAccount", "MaxSubmitJobsPerUser", "MaxTRESMinsPerJob", "MaxTRESPerAccount"),
    *("MaxTRESPerJob", "MaxTRESPerNode", "MaxTRESPerUser", "MaxWall", "MinTRESPerJob"),
)
Limit: Any = (Annotated[str, AfterValidator(check_limit)] | None, None)
Limits = create_model("Limits", __base__=Strict, **dict.fromkeys(LIMITS, Limit))


class Qos(Strict):
    name: Name
    priority: Annotated[int, Field(ge=0)] | None = None
    preempts: list[Name] = []  # names of QOS whose jobs make room
    preempt_mode: PreemptMode | None = None  # what happens to its own jobs then
    grace_time: Annotated[int, Field(ge=0)] | None = None  # seconds between a job's SIGTERM and its end
    limits: Limits = Limits()


READY_LIMITS = {"MaxWall": "1", "MaxJobsPerUser": "1", "MaxTRESPerJob": "gres/gpu=0"}
READY_QOS = Qos(name="ready", limits=Limits.model_validate(READY_LIMITS))
"""Of the job that proves a cluster ready, whatever limits users have. All may use it, so it suits nothing else."""


def check_key(text: str) -> str:
    """A line of authorized_keys without options."""
    if not re.fullmatch(r"(ssh|ecdsa|sk)-[\w@.-]+ [\w+/=]+( [^\n]*)?", text):
        raise ValueError("not a public key: write a line of a file like ~/.ssh/id_ed25519.pub")
    return text


class User(Strict):
    """A user of the cluster, who never may become root. The first of all owns the workspace."""

    name: Name
    uid: Annotated[int, Field(ge=1000, le=65533)] | None = None
    account: Name | None = None  # the default account
    keys: list[Annotated[str, AfterValidator(check_key)]] = []  # public keys for ssh


USERS = [User(name="alice"), User(name="bob")]


class Account(Strict):
    name: Name
    description: str = ""
    parent: Name = "root"
    users: list[Name] = []
    qos: list[Name] = []  # empty: all there are; the first is the default
    fairshare: Annotated[int, Field(ge=0)] | None = None


class Mount(Strict):
    host: str  # a relative path starts where the file is
    container: Annotated[str, StringConstraints(pattern=r"^(/[\w.-]+)+$")]
    read_only: bool = False


class ClusterSpec(Strict):
    """The whole file."""

    nodes: list[NodeGroup] = Field(min_length=1)
    partitions: list[Partition] = []
    qos: list[Qos] = []
    accounts: list[Account] = []
    users: list[User] = Field(default=USERS, min_length=1)
    slurm_conf: list[Annotated[str, AfterValidator(check_line)]] = []
    mounts: list[Mount] = []
    hooks: str = ""  # a folder of the host with scripts of Slurm's administrator; a relative path as in mounts

    @property
    def size(self) -> int:
        return sum(group.count for group in self.nodes)

    @property
    def enforces_limits(self) -> bool:
        return bool(self.qos or self.accounts)

    @property
    def needs_accounts(self) -> bool:
        """Whether accounting of a new cluster lacks something."""
        return self.enforces_limits or self.users != USERS

    @property
    def ready_qos(self) -> str:
        """The QOS of the job that proves the cluster ready; "" for the user's own, where the file has no limits."""
        return READY_QOS.name if self.enforces_limits else ""

    def group_of(self, number: int) -> NodeGroup:
        """The group of node-``number``; nodes beyond the file's are like the last one."""
        for group in self.nodes:
            if number <= group.count:
                return group
            number -= group.count
        return self.nodes[-1]


def model_at(location: Location) -> type[BaseModel]:
    """The model that the key at the end of ``location`` belongs to."""
    parts: dict[str, Any] = {
        "nodes": NodeGroup,
        "partitions": Partition,
        "qos": Qos,
        "accounts": Account,
        "users": User,
        "mounts": Mount,
    }
    if len(location) == 1:
        return ClusterSpec
    return Limits if "limits" in location[:-1] else parts[str(location[0])]
