"""Text of Slurm, Docker and job logs to dataclasses. Pure: text in, values out."""

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """One record of ``scontrol show nodes``; ``memory`` in MiB, ``state`` without its flags, ``gres`` like gpu:2."""

    name: str
    cpus: int
    memory: int
    state: str
    flags: tuple[str, ...]
    reason: str
    gres: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs the node offers: of gpu:2, gpu:h100:8(S:0-1) or several of those."""
        return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", self.gres))

    @property
    def is_idle(self) -> bool:
        """Idle and answering: a record whose slurmd has not come yet is idle too, but POWERED_DOWN or the like."""
        return self.state == "IDLE" and set(self.flags) <= {"CLOUD", "DYNAMIC_NORM"}


@dataclass(frozen=True)
class Job:
    """One record of ``scontrol show job``; ``exit_code`` is Slurm's "status:signal"."""

    id: str
    name: str
    state: str
    reason: str
    exit_code: str
    nodelist: str
    stdout: str

    @property
    def is_over(self) -> bool:
        return self.state not in ACTIVE_STATES


# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
ACTIVE_STATES = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESIZING",
    "RESV_DEL_HOLD",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
}


@dataclass(frozen=True)
class Rank:
    """Where one rank ran, as the rank itself says in its first line; ``node`` is its SLURMD_NODENAME."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    node: str | None
    job_id: str | None
    shard: str


def _fields(line: str) -> dict[str, str]:
    """``Key=value`` words of one line of ``scontrol --oneliner``; a value may hold spaces."""
    return {key: value.strip() for key, value in re.findall(r"(\S+?)=(.*?)(?=\s+[\w:/&]+=|$)", line)}


def parse_nodes(text: str) -> list[Node]:
    """Nodes from ``scontrol --oneliner show nodes``, in the order of the node records: Slurm's order of ranks."""
    nodes = []
    for line in text.splitlines():
        if not line.startswith("NodeName="):
            continue
        fields = _fields(line)
        state, *flags = fields["State"].rstrip("*").split("+")
        nodes.append(
            Node(
                name=fields["NodeName"],
                cpus=int(fields["CPUTot"]),
                memory=int(fields["RealMemory"]),
                state=state,
                flags=(*flags, *(["NOT_RESPONDING"] if fields["State"].endswith("*") else [])),
                reason=fields.get("Reason", ""),
                gres=fields.get("Gres", "").replace("(null)", ""),
                partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
            )
        )
    return nodes


def parse_job(text: str) -> Job:
    """The job in one line of ``scontrol --oneliner show job ID``."""
    fields = _fields(text.strip())
    return Job(
        id=fields["JobId"],
        name=fields["JobName"],
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_code=fields["ExitCode"],
        nodelist="" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
        stdout=fields.get("StdOut", ""),
    )


def parse_table(text: str) -> list[dict[str, str]]:
    """Rows of ``sacct --parsable2`` and the like: a header, then ``|``-separated values; the last may hold ``|``."""
    header, *lines = text.splitlines() or [""]
    names = header.split("|")
    return [dict(zip(names, line.split("|", len(names) - 1), strict=True)) for line in lines if line]


def parse_layout(text: str) -> dict[int, str]:
    """Rank to node name, from ``sattach --layout JOB.STEP``: how slurmctld itself laid the step's tasks out."""
    layout = {}
    for node, ranks in re.findall(r"Node \d+ \((\S+)\), \d+ task\(s\): ([\d ,-]+)", text):
        for part in ranks.replace(",", " ").split():
            first, _, last = part.partition("-")
            layout |= dict.fromkeys(range(int(first), int(last or first) + 1), node)
    return layout


def parse_ranks(log: str) -> list[Rank]:
    """Rank records (JSON lines) of a job's log, by rank. A requeued job's log begins anew, Slurm's default."""
    ranks = []
    for line in log.splitlines():
        # srun --label puts "3: " before a line.
        start = line.find('{"record": "rank"')
        if start < 0:
            continue
        record = json.loads(line[start:])
        ranks.append(
            Rank(
                rank=record["rank"],
                world_size=record["world_size"],
                local_rank=record["local_rank"],
                host=record["host"],
                node=record.get("slurmd_nodename"),
                job_id=record.get("job_id"),
                shard=record.get("shard") or "",
            )
        )
    return sorted(ranks, key=lambda rank: rank.rank)


def parse_gpus(text: str) -> list[str]:
    """Names of the GPUs that ``nvidia-smi -L`` lists; what a GPU is divided into (MIG) is not counted."""
    return re.findall(r"^GPU \d+: (.+) \(UUID: \S+\)$", text, re.MULTILINE)


def parse_memory(text: str) -> int:
    """MiB of "2G", "512M" or "2048" (MiB when there is no unit). ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([MG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not an amount of memory: write 2048 (MiB), 512M or 2G")
    return int(match[1]) * (1024 if match[2].upper() == "G" else 1)
