"""Who am I: the environment of a launcher, or of Slurm, as rank, world size and the address to meet at."""

import json
import os
import socket
from dataclasses import dataclass

# Launcher -> its names of (rank, world size, local rank). The first whose rank is set counts: srun may start torchrun,
# and mpirun starts its daemons by srun, so that srun's come last. torchrun's are also those of accelerate, DeepSpeed,
# submitit and Ray Train; Fabric reads srun's.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
STEP = "SLURM_STEP_ID"  # srun sets it for the processes it starts; a batch script has the names above, but not this one


@dataclass(frozen=True)
class Env:
    rank: int
    world_size: int
    local_rank: int
    master_addr: str | None
    master_port: int | None
    slurmd_nodename: str | None
    job_id: str | None
    restarts: int = 0  # how often Slurm has queued the job again
    step: str | None = None  # number of the job's step: 0 is its first srun
    started: float | None = None  # when Slurm started the job, in seconds since 1970
    job_nodes: int | None = None  # how many nodes the job has
    launcher: str | None = None  # whose names told the rank

    def record(self, shard):
        """What the first line of a rank says: who it is, where it runs, what part of the model it holds."""
        return {
            "record": "rank",
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "host": socket.gethostname(),
            "slurmd_nodename": self.slurmd_nodename,
            "job_id": self.job_id,
            "restarts": self.restarts,
            "launcher": self.launcher,
            "shard": shard,
        }


def read(environ=os.environ):
    """Env from the launcher's variables; one process if there is none. ValueError if they contradict or lack one."""
    rank, world_size, local_rank = 0, 1, 0
    for launcher, names in LAUNCHERS.items():
        if names[0] in environ and (launcher != "srun" or STEP in environ):
            rank, world_size, local_rank = (number(environ, name, launcher) for name in names)
            break
    else:
        launcher = None
        tasks = environ.get("SLURM_NTASKS", "1")
        if tasks != "1":
            raise ValueError(
                f"this job has {tasks} tasks, but 1 process was started, without srun: srun python3 train.py ..."
            )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size} ({names[0]}, {names[1]})")
    if not 0 <= local_rank < world_size:
        raise ValueError(f"local rank {local_rank} is not in a world of {world_size} ({names[2]}, {names[1]})")
    if world_size > 1 and not environ.get("MASTER_ADDR"):
        raise ValueError(
            f"MASTER_ADDR is not set: {world_size} ranks need the address of rank 0; jobs/tp.sbatch shows how"
        )
    return Env(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        master_addr=environ.get("MASTER_ADDR"),
        master_port=number(environ, "MASTER_PORT", "a world of several") if world_size > 1 else None,
        slurmd_nodename=environ.get("SLURMD_NODENAME"),
        job_id=environ.get("SLURM_JOB_ID"),
        restarts=int(environ.get("SLURM_RESTART_COUNT", 0)),
        step=environ.get(STEP),
        started=float(environ["SLURM_JOB_START_TIME"]) if "SLURM_JOB_START_TIME" in environ else None,
        job_nodes=number(environ, "SLURM_JOB_NUM_NODES", "") if "SLURM_JOB_NUM_NODES" in environ else None,
        launcher=launcher,
    )


def number(environ, name, needed_by):
    """An integer of the environment, or ValueError."""
    value = environ.get(name)
    if value is None:
        raise ValueError(f"{name} is not set, but {needed_by} needs it")
    if not value.isdecimal():
        raise ValueError(f"{name} must be a number, got {value!r}")
    return int(value)


def announce(record):
    """Print the rank record in one write: the ranks share one log, and lines must not interleave."""
    os.write(1, (json.dumps(record) + "\n").encode())


def begins(env, config):
    """Whether a run with `resume` auto or none begins anew: in the first step of a job that was not queued again.

    A folder that it finds then belongs to another job, for job ids begin at 1 again on a new cluster. But a folder that
    is younger than the job is its own: a launcher has started the ranks again.
    """
    first = env.job_id is not None and env.restarts == 0 and env.step in (None, "0")
    folder = config.run_path()
    own = env.started is not None and folder.exists() and folder.stat().st_mtime >= env.started
    return first and not own and not config.run_dir and config.resume in ("", "auto")
