"""Nodes, jobs and accounting as dataclasses, from ``scontrol --json`` and ``sacct --json``. Pure: text in, values out.

The fields are those of Slurm's data parsers, v0.0.42 (Slurm 24.11) and later:
https://slurm.schedmd.com/rest_api.html, https://slurm.schedmd.com/job_state_codes.html
"""

import re
from dataclasses import dataclass
from typing import Any

from slurmbed.errors import PlacementError
from slurmbed.slurm.fields import Fields
from slurmbed.slurm.layout import spread
from slurmbed.slurm.node_states import BUSY, IDLE, outlook

SHOW_NODES = ("scontrol", "--json", "show", "nodes")
SHOW_JOB = ("scontrol", "--json", "show", "job")
SACCT = ("sacct", "--json", "--allusers", "--duplicates")
"""The commands whose output the functions here read. SHOW_JOB wants a job id behind it, SACCT may have options."""

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
"""States of a job that is not over. https://slurm.schedmd.com/job_state_codes.html"""


@dataclass(frozen=True)
class Node:
    """A node record of slurmctld; ``memory`` in MiB, ``state`` without its flags, ``gres`` like gpu:2."""

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
        """Number of GPUs that the node offers: of gpu:2, gpu:h100:8(S:0-1) or several of those."""
        return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", self.gres))

    @property
    def is_idle(self) -> bool:
        """Idle and answering. A record without a slurmd is idle too, with a flag like POWERED_DOWN."""
        return outlook((self.state, *self.flags)) == IDLE

    @property
    def works(self) -> bool:
        """Idle, or busy."""
        return outlook((self.state, *self.flags)) <= BUSY


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job record of slurmctld: one job, one task of an array, or one component of a heterogeneous job.

    Args:
        id: as in squeue: 7, 7_2 (task 2 of array 7), 7+1 (component 1 of heterogeneous job 7), or 7_[3-9%2]
            (the tasks of array 7 that have not started).
        raw_id: the number that Slurm gave this record alone, in accounting JobIDRaw.
        state: as in squeue: a flag like COMPLETING takes precedence over RUNNING.
        reason: why it waits or failed; "None" if there is no reason, "" if it comes from accounting.
        exit_code: "status:signal".
        nodelist: like node-[1-2]; "" before the job has nodes.
        array_job_id, array_task_id: of an array's task. The tasks that have not started are one record, without a task.
        het_job_id, het_offset: of a heterogeneous job's component.

    https://slurm.schedmd.com/job_array.html, https://slurm.schedmd.com/heterogeneous_jobs.html
    """

    id: str
    raw_id: str
    name: str
    state: str
    reason: str
    exit_code: str
    nodelist: str
    stdout: str
    array_job_id: str | None = None
    array_task_id: int | None = None
    het_job_id: str | None = None
    het_offset: int | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in ACTIVE_STATES

    @property
    def position(self) -> tuple[bool, int, int]:
        """For sorting: by task or component, the tasks that have not started last."""
        not_started = self.array_job_id is not None and self.array_task_id is None
        return not_started, self.array_task_id or 0, self.het_offset or 0

    def is_named(self, job_id: str) -> bool:
        """Whether the id names this job, or an array or a heterogeneous job that it belongs to."""
        if job_id in (self.id, self.raw_id, self.array_job_id, self.het_job_id):
            return True
        array, _, task = job_id.partition("_")
        not_started = self.array_task_id is None and self.array_job_id == array
        return not_started and task.isdigit() and _holds(self.id.partition("_")[2], int(task))


@dataclass(frozen=True)
class Step:
    """A job step in accounting.

    Args:
        id: what comes behind the dot: 0, batch, extern.
        nodes: host names in Slurm's order.
        tasks: number of tasks.
        distribution: how the tasks were distributed over the nodes, like Block. https://slurm.schedmd.com/srun.html#OPT_distribution
        elapsed: seconds.
    """

    id: str
    name: str
    state: str
    exit_code: str
    nodes: tuple[str, ...]
    tasks: int
    distribution: str
    elapsed: int

    def layout(self) -> list[str]:
        """The node of each task.

        Raises:
            PlacementError: accounting does not hold enough to say.
        """
        layout = spread(self.nodes, self.tasks, self.distribution)
        if layout is None:
            raise PlacementError(f"step {self.id}: accounting keeps no layout of distribution {self.distribution}")
        return layout


@dataclass(frozen=True, kw_only=True)
class JobAccounting(Job):
    """A job's record in accounting. A requeued job has one record for each run.

    The tasks of an array that never started are one record, whose id is the array's.

    Args:
        nodes: number of its nodes.
        elapsed: seconds.
    """

    user: str
    nodes: int
    elapsed: int
    steps: tuple[Step, ...]


def parse_nodes(text: str) -> list[Node]:
    """Nodes from the output of SHOW_NODES, in the order of slurmctld's records, which is its order of ranks.

    Raises:
        SlurmbedError: no JSON, or a field is missing.
    """
    nodes = []
    for fields in Fields.of_output(text, " ".join(SHOW_NODES)).objects("nodes"):
        state, *flags = fields.flags("state")
        nodes.append(
            Node(
                name=fields.text("name"),
                cpus=fields.count("cpus"),
                memory=fields.count("real_memory"),
                state=state,
                flags=tuple(flags),
                reason=fields.text("reason"),
                gres=fields.text("gres"),
                partitions=fields.texts("partitions"),
            )
        )
    return nodes


def parse_jobs(text: str) -> list[Job]:
    """Jobs from the output of SHOW_JOB: by array task or component, tasks that have not started last.

    Raises:
        SlurmbedError: no JSON, or a field is missing.
    """
    jobs = [_job(fields) for fields in Fields.of_output(text, " ".join(SHOW_JOB)).objects("jobs")]
    return sorted(jobs, key=lambda job: job.position)


def parse_accounting(text: str) -> list[JobAccounting]:
    """Jobs from the output of SACCT: by array task or component, the runs of a requeued job in their order.

    Raises:
        SlurmbedError: no JSON, or a field is missing.
    """
    rows = [_accounting(fields) for fields in Fields.of_output(text, " ".join(SACCT)).objects("jobs")]
    return sorted(rows, key=lambda job: job.position)


def _holds(tasks: str, task: int) -> bool:
    """Whether a list like [1,3-5,10-20:2%4] has the task; True if Slurm cut the list short."""
    spans = re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", tasks.partition("%")[0])
    listed = any(task in range(int(first), int(last or first) + 1, int(step or 1)) for first, last, step in spans)
    return listed or "..." in tasks


def _job(fields: Fields) -> Job:
    ids = _ids(fields, "array_job_id", "array_task_id", "het_job_id", "het_job_offset")
    if ids["array_job_id"] and ids["array_task_id"] is None:
        ids["id"] += f"_[{fields.text('array_task_string')}]"
    return Job(
        **ids,
        name=fields.text("name"),
        state=_state(fields.flags("job_state")),
        reason=fields.text("state_reason"),
        exit_code=_exit_code(fields),
        nodelist=fields.text("nodes"),
        # From 25.05 on, standard_output is the pattern that the user wrote.
        stdout=fields.text("stdout_expanded" if fields.has("stdout_expanded") else "standard_output"),
    )


def _accounting(fields: Fields) -> JobAccounting:
    nodelist = fields.text("nodes")
    return JobAccounting(
        **_ids(fields, "array.job_id", "array.task_id", "het.job_id", "het.job_offset"),
        name=fields.text("name"),
        user=fields.text("user"),
        state=_state(fields.flags("state.current")),
        reason="",  # accounting keeps the last reason to wait, even of a job that has run
        exit_code=_exit_code(fields),
        nodes=fields.count("allocation_nodes"),
        nodelist="" if nodelist == "None assigned" else nodelist,
        stdout=fields.text("stdout_expanded"),
        elapsed=fields.count("time.elapsed"),
        steps=tuple(_step(step) for step in fields.objects("steps")),
    )


def _step(fields: Fields) -> Step:
    return Step(
        id=fields.text("step.id").partition(".")[2],
        name=fields.text("step.name"),
        state=_state(fields.flags("state")),
        exit_code=_exit_code(fields),
        nodes=fields.texts("nodes.list"),
        tasks=fields.count("tasks.count"),
        distribution=fields.text("task.distribution"),
        elapsed=fields.count("time.elapsed"),
    )


def _ids(fields: Fields, array_job: str, array_task: str, het_job: str, het_offset: str) -> dict[str, Any]:
    """The arguments of Job that identify it; the arguments here are paths. A number of 0 means no array and no job."""
    raw_id = str(fields.count("job_id"))
    ids: dict[str, Any] = {"id": raw_id, "raw_id": raw_id, "array_job_id": None, "array_task_id": None}
    if array := fields.number(array_job):
        task = fields.number(array_task)
        id = str(array) if task is None else f"{array}_{task}"
        ids |= {"id": id, "array_job_id": str(array), "array_task_id": task}
    if het := fields.number(het_job):
        offset = fields.count(het_offset)
        ids |= {"id": f"{het}+{offset}", "het_job_id": str(het), "het_offset": offset}
    return ids


def _state(flags: tuple[str, ...]) -> str:
    """Reduce a list of flags to one state. As in squeue, an active flag such as COMPLETING takes precedence over the
    final state.
    """
    return next((flag for flag in flags[1:] if flag in ACTIVE_STATES), flags[0])


def _exit_code(fields: Fields) -> str:
    return f"{fields.number('exit_code.return_code') or 0}:{fields.number('exit_code.signal.id') or 0}"
