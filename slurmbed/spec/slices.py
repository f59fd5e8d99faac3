"""Slices of the host: the cores, memory and GPUs that each node offers, and its container's limits. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from slurmbed.errors import UsageError
from slurmbed.project import command, option
from slurmbed.spec import gpus
from slurmbed.spec.gpus import NO_GPUS, Gpus
from slurmbed.spec.model import ClusterSpec, NodeGroup

MIB_PER_CPU = 64  # the least that a job on one CPU can do anything with
HEADROOM = 256  # MiB that a container has and jobs are not given: for daemons, and files in /tmp and /dev/shm


class HostResources(Protocol):
    """The machine that is shared out; memory in MiB."""

    @property
    def cpus(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def limits_cpus(self) -> bool: ...
    @property
    def limits_memory(self) -> bool: ...
    def gpus(self) -> Sequence[str]:
        """Names of the GPUs that containers can be given, in nvidia-smi's order. UsageError if there is none."""
        ...

    def gpu_names(self) -> Sequence[str]:
        """Names of the host's GPUs; empty if it has none."""
        ...


class Slice(BaseModel):
    """The resources that a node offers, and its container's limits.

    ``memory`` in MiB; a limit of 0 is none. ``gpu_ids`` are nvidia-smi's numbers of the host's GPUs, empty for emulated
    ones. ``features`` begin with the name of the node's group. ``topology`` is as in Slurm's record. An ``elastic``
    node's container runs only while Slurm asks for it. ``own_cpus`` are the host's numbers of its dedicated CPUs; if
    empty, it runs on any.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
    cpus: int
    memory: int
    cpu_limit: int = 0
    memory_limit: int = 0
    gpus: Gpus = NO_GPUS
    gpu_ids: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    topology: str = ""
    elastic: bool = False
    own_cpus: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        return self.features[0] if self.features else ""

    @property
    def record(self) -> str:
        """The node's record in Slurm."""
        gres = [f"Gres={self.gpus.gres}"] if self.gpus else []
        features = [f"Feature={','.join(self.features)}"] if self.features else []
        cpus = [f"CPUs={self.cpus}", *self.topology.split()]
        return " ".join([*cpus, f"RealMemory={self.memory}", *gres, *features])


def plain_slices(
    host: HostResources,
    count: int,
    kept: Mapping[int, Slice],
    *,
    cpus: int | None = None,
    memory: int | None = None,
    asked: Gpus | None = None,
    name: str = "",
) -> list[Slice]:
    """The slice of each of ``count`` nodes. Existing nodes keep theirs; new ones share what is left.

    Args:
        kept: slices of existing nodes, by the nodes' numbers.
        cpus, memory, asked: what the user asks for each node: CPUs, MiB and GPUs.
        name: the cluster's, for hints.

    Raises:
        UsageError: it does not fit on the host, or differs from what existing nodes have.
    """
    kept = {number: node_slice for number, node_slice in kept.items() if number <= count}
    again = f"{command('clean', name=name)}, then {command('up', name=name)}"
    had = next((node_slice.gpus for node_slice in kept.values()), NO_GPUS)
    names = host.gpu_names() if asked and not asked.emulated else ()
    wanted = had if asked is None else asked.on_host(names)
    if kept and wanted != had:
        raise UsageError(
            f"{option('gpus', asked)}: the existing nodes were made with {option('gpus', had)}",
            f"GPUs are chosen when a cluster is created: {again}",
        )
    # A cluster made with fewer CPUs than GPUs can start again and grow.
    least_cpus = min([wanted.count, *(node_slice.cpus for node_slice in kept.values())])
    new = slice_for(
        host,
        count,
        cpus=cpus,
        memory=memory,
        taken=sum(node_slice.memory for node_slice in kept.values()),
        kept=len(kept),
        least_cpus=least_cpus,
        name=name,
    )
    for node_slice in kept.values():
        if (cpus and node_slice.cpus != new.cpus) or (memory and node_slice.memory != new.memory):
            raise UsageError(
                f"the existing nodes have {node_slice.cpus} CPUs and {node_slice.memory} MiB",
                f"CPUs and memory are chosen when a cluster is created: {again}",
            )
    taken_gpus = {gpu_id for node_slice in kept.values() for gpu_id in node_slice.gpu_ids}
    missing = count - len(kept)
    available = host.gpus() if missing and wanted and not wanted.emulated else ()
    shares = iter(gpus.share_out(wanted, missing, available, taken_gpus))
    return [
        kept[n] if n in kept else new.model_copy(update={"gpus": wanted, "gpu_ids": next(shares)})
        for n in range(1, count + 1)
    ]


def slice_for(
    host: HostResources,
    nodes: int,
    *,
    cpus: int | None = None,
    memory: int | None = None,
    taken: int = 0,
    kept: int = 0,
    least_cpus: int = 0,
    name: str = "",
) -> Slice:
    """The slice of each new node: an equal share of the host, or what the user asked for, checked.

    Of ``nodes`` nodes ``kept`` exist already, with ``taken`` MiB; the others share the rest. Nodes may offer more CPUs
    than the host has, to imitate a larger machine, but not more memory. Without ``cpus`` a node offers at least
    ``least_cpus``: a rank on each of its GPUs needs one.

    Raises:
        UsageError: more memory than the host has, or too little for the CPUs.
    """
    each_cpus = cpus or max(1, host.cpus // nodes, least_cpus)
    usable = host.memory * 3 // 4
    each_memory = memory or usable // nodes
    if not memory and nodes > kept:
        each_memory = min(each_memory, (host.memory - taken) // (nodes - kept))
    total = taken + each_memory * (nodes - kept)
    if total > host.memory:
        raise UsageError(
            f"{option('memory', f'{each_memory}M')} for each of {nodes} nodes is {total} MiB; "
            f"the host has {host.memory} MiB",
            f"leave {option('memory')} out, or use at most {option('memory', f'{usable // nodes}M')}",
        )
    if each_memory < each_cpus * MIB_PER_CPU:
        raise UsageError(
            f"{each_memory} MiB for a node of {each_cpus} CPUs: less than {MIB_PER_CPU} MiB per CPU",
            f"ask for fewer nodes, CPUs or GPUs; existing nodes keep their memory until: {command('clean', name=name)}",
        )
    return Slice(
        cpus=each_cpus,
        memory=each_memory,
        cpu_limit=min(each_cpus, host.cpus) if host.limits_cpus else 0,
        memory_limit=each_memory + HEADROOM if host.limits_memory else 0,
    )


def slices_of_spec(spec: ClusterSpec, host: HostResources, count: int, kept: Mapping[int, Slice]) -> list[Slice]:
    """The slice of each of ``count`` nodes by its group. What groups leave open is divided equally.

    Raises:
        UsageError: the host has too little memory or too few GPUs.
    """
    kept = {number: node_slice for number, node_slice in kept.items() if number <= count}
    given = sum(group.count * group.memory for group in spec.nodes if group.memory)
    open_nodes = sum(group.count for group in spec.nodes if not group.memory)
    share = (host.memory * 3 // 4 - given) // max(open_nodes, 1)
    if count > spec.size and not spec.nodes[-1].memory:  # nodes beyond the file's share what is left
        taken = sum(node_slice.memory for node_slice in kept.values())
        share = min(share, (host.memory - taken) // max(count - len(kept), 1))
    slices: list[Slice] = []
    for number in range(1, count + 1):
        group = spec.group_of(number)
        node_slice = kept.get(number) or group_slice(group, host, spec.size, share)
        if number not in kept and node_slice.gpus and not node_slice.gpus.emulated:
            others = {gpu_id for each in (*slices, *kept.values()) for gpu_id in each.gpu_ids}
            (gpu_ids,) = gpus.share_out(node_slice.gpus, 1, host.gpus(), others)
            node_slice = node_slice.model_copy(update={"gpu_ids": gpu_ids})
        slices.append(node_slice)
    total = sum(node_slice.memory for node_slice in slices)
    if total > host.memory:
        raise UsageError(f"{count} nodes have {total} MiB; the host has {host.memory} MiB", "give them less memory")
    return slices


def with_own_cpus(
    slices: Sequence[Slice], kept: Mapping[int, Slice], numbers: Sequence[int], others: Sequence[Slice]
) -> list[Slice]:
    """The slices with dedicated CPUs, if the host has as many CPUs as the cluster's nodes offer together.

    That is decided when the cluster is created. Nodes that are added later share CPUs if none is left.

    Args:
        kept: slices of existing nodes, by the nodes' numbers; they do not change.
        numbers: the host's numbers of its CPUs; empty if containers cannot have dedicated CPUs.
        others: slices of other clusters, whose CPUs are assigned last.
    """
    bound = (
        any(node_slice.own_cpus for node_slice in kept.values())
        if kept
        else sum(each.cpus for each in slices) <= len(numbers)
    )
    if not bound:
        return list(slices)
    users = Counter(number for node_slice in (*slices, *others) for number in node_slice.own_cpus)
    result = []
    for node_slice in slices:
        if not node_slice.own_cpus:
            least = sorted(numbers, key=lambda number: (users[number], number))[: node_slice.cpus]
            users.update(least)
            node_slice = node_slice.model_copy(update={"own_cpus": tuple(sorted(least))})
        result.append(node_slice)
    return result


def group_slice(group: NodeGroup, host: HostResources, nodes: int, share: int) -> Slice:
    """The slice of a node of ``group``; ``share`` MiB if the group does not set its memory."""
    memory = group.memory or share
    if memory < 1:
        raise UsageError(f"the other groups leave no memory for the nodes of {group.name}", "give them less memory")
    cpus = group.cpus or group.threads_in_all or max(1, host.cpus // nodes, group.gpus.count)
    try:
        node_slice = slice_for(host, 1, cpus=cpus, memory=memory)
    except UsageError as error:
        raise UsageError(f"a node of the group {group.name}: {error.reason}", error.hint) from None
    of_group = {"gpus": group.gpus, "features": (group.name, *group.features), "topology": group.topology}
    return node_slice.model_copy(update=of_group | {"elastic": group.elastic})
