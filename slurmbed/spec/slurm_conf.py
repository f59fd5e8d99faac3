"""The lines that a cluster adds to slurm.conf. A line replaces those of the image's slurm.conf with the same key."""

from collections.abc import Iterator

from slurmbed.spec.model import ClusterSpec, Partition


def lines(spec: ClusterSpec | None, bind_cpus: bool = False, cgroups: bool = False) -> list[str]:
    """The spec's lines; the user's own come last, and instead of others with the same key.

    Args:
        bind_cpus: nodes have dedicated CPUs, to which Slurm binds jobs.
        cgroups: Slurm makes cgroups on nodes, to track a job's processes and to limit their memory.
    """
    tasks = (["task/cgroup"] if cgroups else []) + (["task/affinity"] if bind_cpus else [])
    tracking = [f"TaskPlugin={','.join(tasks)}"] if tasks else []
    if cgroups:
        tracking += ["ProctrackType=proctrack/cgroup", "JobAcctGatherType=jobacct_gather/cgroup"]
        tracking += ["JobAcctGatherParams=OverMemoryKill"]  # the image's NoShared is jobacct_gather/linux's
    if not spec:
        return tracking
    own = {line.partition("=")[0].lower() for line in spec.slurm_conf}
    ours = [*tracking, *accounting(spec), *preemption(spec), *hooks(spec), *power(spec), *partitions(spec)]
    return [line for line in ours if line.partition("=")[0].lower() not in own] + list(spec.slurm_conf)


def accounting(spec: ClusterSpec) -> Iterator[str]:
    kinds = dict.fromkeys(filter(None, (group.gpus.slurm_type for group in spec.nodes)))
    yield "AccountingStorageTRES=" + ",".join(("gres/gpu", *(f"gres/gpu:{kind}" for kind in kinds)))


def preemption(spec: ClusterSpec) -> Iterator[str]:
    if any(qos.preempts for qos in spec.qos):
        yield from ("PreemptType=preempt/qos", "PreemptMode=REQUEUE")
    elif any(partition.preempt_mode for partition in spec.partitions):
        yield from ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")


def hooks(spec: ClusterSpec) -> Iterator[str]:
    """Slurm takes several lines of these keys; the image's own scripts still run."""
    for key in ("Prolog", "Epilog") if spec.hooks else ():
        yield from (f"{key}=/etc/slurm/{key.lower()}.d/*", f"{key}=/etc/slurm/hooks/{key.lower()}.d/*")


def power(spec: ClusterSpec) -> Iterator[str]:
    """Slurm's power saving. A container starts and stops in seconds; a busy machine takes longer."""
    if any(group.elastic for group in spec.nodes):
        yield from ("ResumeProgram=/etc/slurm/power/resume", "SuspendProgram=/etc/slurm/power/suspend")
        yield "ResumeFailProgram=/etc/slurm/power/suspend"  # so that a node that did not come in time can come again
        yield from ("SuspendTime=60", "SuspendTimeout=20", "ResumeTimeout=180")


def partitions(spec: ClusterSpec) -> Iterator[str]:
    """Node sets by the groups' names, and the partitions of these; the first is the default unless another is."""
    if not spec.partitions:
        return
    for group in spec.nodes:
        yield f"NodeSet={group.name} Feature={group.name}"
    default = next((each for each in spec.partitions if each.default), spec.partitions[0])
    by_partition = any(each.preempt_mode for each in spec.partitions)
    for each in spec.partitions:
        yield " ".join(options(each, each is default, by_partition))


LONGEST, USUAL = "7-00:00:00", "1:00:00"  # time limits, as in the image's slurm.conf


def options(partition: Partition, is_default: bool, preempt: bool) -> Iterator[str]:
    yield f"PartitionName={partition.name} Nodes={','.join(partition.nodes)} State=UP"
    yield f"MaxTime={partition.max_time or LONGEST}"
    if is_default:
        yield "Default=YES"
    # Slurm says that this is MaxTime by default, but then gives a job without --time its QOS's MaxWall, be it longer.
    yield f"DefaultTime={partition.default_time or partition.max_time or USUAL}"
    if partition.priority_tier is not None:
        yield f"PriorityTier={partition.priority_tier}"
    if preempt:
        yield f"PreemptMode={(partition.preempt_mode or 'off').upper()}"
