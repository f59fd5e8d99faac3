"""What a shape adds to slurm.conf. A line replaces those of the image's slurm.conf with the same key."""

from collections.abc import Iterator

from slurmbed.spec import gpus
from slurmbed.spec.model import Partition, Shape


def lines(shape: Shape) -> list[str]:
    """The shape's lines; the user's own come last, and instead of others with the same key."""
    own = {line.partition("=")[0].lower() for line in shape.slurm_conf}
    ours = [*accounting(shape), *preemption(shape), *priorities(shape), *partitions(shape)]
    return [line for line in ours if line.partition("=")[0].lower() not in own] + list(shape.slurm_conf)


def accounting(shape: Shape) -> Iterator[str]:
    if shape.enforces_limits:
        yield "AccountingStorageEnforce=associations,limits,qos"
    kinds = dict.fromkeys(filter(None, (gpus.kind(group.gpus) for group in shape.nodes)))
    yield "AccountingStorageTRES=" + ",".join(("gres/gpu", *(f"gres/gpu:{kind}" for kind in kinds)))


def preemption(shape: Shape) -> Iterator[str]:
    if any(qos.preempts for qos in shape.qos):
        yield from ("PreemptType=preempt/qos", "PreemptMode=REQUEUE")
    elif any(partition.preempt_mode for partition in shape.partitions):
        yield from ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")


def priorities(shape: Shape) -> Iterator[str]:
    """Slurm weighs nothing but a job's age unless told to."""
    if any(qos.priority for qos in shape.qos):
        yield "PriorityWeightQOS=10000"
    if any(account.fairshare is not None for account in shape.accounts):
        yield "PriorityWeightFairshare=10000"


def partitions(shape: Shape) -> Iterator[str]:
    """Node sets by the groups' names, and the partitions of these; the first is the default unless another is."""
    if not shape.partitions:
        return
    for group in shape.nodes:
        yield f"NodeSet={group.name} Feature={group.name}"
    default = next((each for each in shape.partitions if each.default), shape.partitions[0])
    by_partition = any(each.preempt_mode for each in shape.partitions)
    for each in shape.partitions:
        yield " ".join(words(each, each is default, by_partition))


def words(partition: Partition, is_default: bool, preempt: bool) -> Iterator[str]:
    yield f"PartitionName={partition.name} Nodes={','.join(partition.nodes)} State=UP"
    yield f"MaxTime={partition.max_time or 'UNLIMITED'}"
    if is_default:
        yield "Default=YES"
    # Slurm says that this is MaxTime by default, but then gives a job without --time its QOS's MaxWall, be it longer.
    if default_time := partition.default_time or partition.max_time:
        yield f"DefaultTime={default_time}"
    if partition.priority_tier is not None:
        yield f"PriorityTier={partition.priority_tier}"
    if preempt:
        yield f"PreemptMode={(partition.preempt_mode or 'off').upper()}"
