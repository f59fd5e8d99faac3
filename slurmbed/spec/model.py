"""A cluster's configuration file: node groups, partitions, QOS, accounts, mounts; and what contradicts itself in it."""

import re
from collections.abc import Iterator
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
        """Of all cores of all sockets; 0 if nothing is said of them."""
        if not (self.sockets or self.cores or self.threads):
            return 0
        sockets, threads = self.sockets or 1, self.threads or 1
        return sockets * threads * (self.cores or max(1, (self.cpus or 1) // (sockets * threads)))

    @property
    def topology(self) -> str:
        """In Slurm's words; "" if nothing is said of it."""
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
    preempt_mode: PreemptMode | None = None  # what becomes of its jobs when a higher tier wants their nodes


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
    preempt_mode: PreemptMode | None = None  # what becomes of its own jobs then
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


NEEDED = re.compile(
    "ClusterName|SlurmctldHost|SlurmctldPort|SlurmdPort|SlurmUser|SlurmdUser|StateSaveLocation|SlurmdSpoolDir|"
    "Slurm(ctld|d)PidFile|AuthType|CredType|AuthAlt.*|Node.*|DownNodes|MaxNodeCount|PartitionName|Include|"
    "SelectType|ProctrackType|TaskPlugin|SlurmdParameters|GresTypes|AccountingStorage(Type|Host|Port|Enforce|TRES)|"
    "(Task)?Prolog|Epilog",
    re.IGNORECASE,
)
"""Keys of slurm.conf that slurmbed sets itself."""

SYSTEM = re.compile(r"/(bin|boot|dev|etc|home|keys|lib\w*|opt|proc|root|run|sbin|sys|tmp|usr|var|workspace)(/|$)")
"""Folders of a container that are not to be covered."""


def conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    """Mistakes that involve more than one key: pairs of location and message."""
    for field in ("nodes", "partitions", "qos", "accounts", "users"):
        yield from repeated(field, [each.name for each in getattr(spec, field)], "name")
    yield from repeated("mounts", [mount.container for mount in spec.mounts], "container")
    yield from group_conflicts(spec)
    yield from partition_conflicts(spec)
    yield from preemption_conflicts(spec)
    yield from account_conflicts(spec)
    yield from user_conflicts(spec)
    for i, line in enumerate(spec.slurm_conf):
        key = line.partition("=")[0]
        if NEEDED.fullmatch(key):
            yield ("slurm_conf", i), f"{key} is set by slurmbed itself"
    for i, mount in enumerate(spec.mounts):
        if SYSTEM.match(mount.container) or ".." in mount.container.split("/"):
            yield (
                ("mounts", i, "container"),
                f"{mount.container} is a system folder of the containers; choose another path, like /data",
            )


def repeated(field: str, names: list[str], key: str) -> Iterator[tuple[Location, str]]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield (field, i, key), f"{name} is given twice"


def unknown(names: list[str], known: list[str], what: str, where: Location) -> Iterator[tuple[Location, str]]:
    for i, name in enumerate(names):
        if name not in known:
            yield (*where, i), f"there is no {what} {name}; there are: {', '.join(known)}"


def group_conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    groups = [group.name for group in spec.nodes]
    for i, group in enumerate(spec.nodes):
        if group.cpus and group.threads_in_all not in (0, group.cpus):
            yield ("nodes", i, "cpus"), f"{group.cpus}, but sockets, cores and threads make {group.threads_in_all}"
        if group.threads_in_all > MAX_CPUS:
            yield ("nodes", i), f"sockets, cores and threads make {group.threads_in_all} CPUs; at most {MAX_CPUS}"
        if group.name in ("all", "default") or re.match(r"node(-\d|$)", group.name):
            yield ("nodes", i, "name"), f"{group.name} means something else to Slurm: choose another name"
        if spec.partitions and not any(group.name in each.nodes for each in spec.partitions):
            yield ("nodes", i, "name"), f"no partition has the nodes of {group.name}"
        if group.elastic and (i == 0 or not all(later.elastic for later in spec.nodes[i:])):
            yield ("nodes", i, "elastic"), "elastic groups come last, after a group whose nodes always run"
        for j, feature in enumerate(group.features):
            if feature in groups:
                yield ("nodes", i, "features", j), f"{feature} is a feature of all nodes of the group {feature}"
        if group.gpus and not group.gpus.slurm_type and any(each.gpus.slurm_type for each in spec.nodes):
            yield ("nodes", i, "gres"), f"Slurm wants a type for all GPUs or for none: gpu:TYPE:{group.gpus.count}"


def partition_conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    groups = [group.name for group in spec.nodes]
    for i, partition in enumerate(spec.partitions):
        yield from unknown(partition.nodes, groups, "node group", ("partitions", i, "nodes"))
    first, *more = [i for i, partition in enumerate(spec.partitions) if partition.default] or [0]
    for i in more:
        yield ("partitions", i, "default"), f"{spec.partitions[first].name} is the default partition already"


def preemption_conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    known = [qos.name for qos in spec.qos]
    for i, qos in enumerate(spec.qos):
        yield from unknown(qos.preempts, known, "QOS", ("qos", i, "preempts"))
        if qos.name in qos.preempts:
            yield ("qos", i, "preempts"), f"{qos.name} cannot preempt itself"
        if qos.name == READY_QOS.name:
            yield ("qos", i, "name"), f"{qos.name} is slurmbed's own, for the job that shows that a cluster works"
    if any(qos.preempts for qos in spec.qos):
        for i, partition in enumerate(spec.partitions):
            if partition.preempt_mode:
                yield (
                    ("partitions", i, "preempt_mode"),
                    "this file preempts by QOS, so no partition has preempt_mode",
                )


def account_conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    known = [qos.name for qos in spec.qos]
    for i, account in enumerate(spec.accounts):
        if account.name in ("root", "class"):
            yield ("accounts", i, "name"), f"{account.name} always exists: choose another name"
        above = ["root", *(each.name for each in spec.accounts[:i])]
        if account.parent not in above:
            reason = f"unknown parent account {account.parent}; a parent comes before its children"
            yield ("accounts", i, "parent"), f"{reason}; known: {', '.join(above)}"
        yield from unknown(account.users, [user.name for user in spec.users], "user", ("accounts", i, "users"))
        yield from unknown(account.qos, list(dict.fromkeys(["normal", *known])), "QOS", ("accounts", i, "qos"))


SYSTEM_USERS = re.compile(
    "root|daemon|bin|sys|sync|games|man|lp|mail|news|uucp|proxy|www-data|backup|list|irc|nobody|sshd|munge|mysql|"
    "slurm|slurmrest|messagebus|systemd-.*"
)
"""Users that the images have."""


def user_conflicts(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    accounts = ["class", *(account.name for account in spec.accounts)]
    uids = [user.uid for user in spec.users]
    for i, user in enumerate(spec.users):
        if SYSTEM_USERS.fullmatch(user.name):
            yield ("users", i, "name"), f"{user.name} is a user of the system: choose another name"
        if user.uid and user.uid in uids[:i]:
            yield ("users", i, "uid"), f"{user.uid} is that of {spec.users[uids.index(user.uid)].name} already"
        if user.account and user.account not in accounts:
            yield ("users", i, "account"), f"there is no account {user.account}; there are: {', '.join(accounts)}"


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
