"""Who am I: the environment of a launcher, or of Slurm, as rank, world size and the address to meet at."""

import json
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

# Launcher -> its names of (rank, world size, local rank). The first whose rank is set counts: srun may start torchrun.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
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


@contextmanager
def process_group(env, timeout):
    """The ranks, connected; left in order at the end. Nobody waits longer than `timeout` seconds for another.

    After an error a rank just ends: the others see its connection close, and end too.
    """
    timeout = timedelta(seconds=timeout)
    if env.world_size == 1:
        meeting = {"store": dist.HashStore()}
    else:
        meeting = {"init_method": f"tcp://{env.master_addr}:{env.master_port}"}
    dist.init_process_group("gloo", rank=env.rank, world_size=env.world_size, timeout=timeout, **meeting)
    yield
    dist.barrier()  # rank 0 holds the store: it must not leave first
    dist.destroy_process_group()


def gather(value):
    """The values of all ranks, in the order of ranks, on each rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
