"""Contradictions in a cluster's configuration file."""

import re
from collections.abc import Iterator

from slurmbed.spec.model import MAX_CPUS, READY_QOS, ClusterSpec, Location

NEEDED = re.compile(
    "ClusterName|SlurmctldHost|SlurmctldPort|SlurmdPort|SlurmUser|SlurmdUser|StateSaveLocation|SlurmdSpoolDir|"
    "Slurm(ctld|d)PidFile|AuthType|CredType|AuthAlt.*|Node.*|DownNodes|MaxNodeCount|PartitionName|Include|"
    "SelectType|ProctrackType|TaskPlugin|SlurmdParameters|GresTypes|AccountingStorage(Type|Host|Port|Enforce|TRES)|"
    "(Task)?Prolog|Epilog",
    re.IGNORECASE,
)
"""Keys of slurm.conf that slurmbed sets itself."""

SYSTEM = re.compile(r"/(bin|boot|dev|etc|home|keys|lib\w*|opt|proc|root|run|sbin|sys|tmp|usr|var|workspace)(/|$)")
"""Folders of a container that no mount may cover."""


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
