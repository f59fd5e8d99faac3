"""Who am I: the environment of a launcher, or of Slurm, as rank, world size and the address to meet at."""

import json
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist

# Launcher -> its names of (rank, world size, local rank). The first whose rank is set counts: srun may start torchrun.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
LEAVE_TAKING = 20  # sums before the ranks part: some milliseconds
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
        restarts=int(environ.get("SLURM_RESTART_COUNT", 0)),
        step=environ.get(STEP),
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
    """Whether a run with `resume` auto or none begins anew: the first step of a job that was not queued again.

    What is in its folder then is of another job: job ids begin at 1 again with every cluster.
    """
    first = env.job_id is not None and env.restarts == 0 and env.step in (None, "0")
    return first and not config.run_dir and config.resume in ("", "auto")


def set_aside(folder):
    """Rename what an earlier job left, if there is anything."""
    if folder.exists():
        earlier = (folder.with_name(f"{folder.name}-earlier-{number}") for number in count(1))
        folder.rename(next(path for path in earlier if not path.exists()))


@contextmanager
def process_group(env, backend, timeout):
    """The ranks, connected; yields the device that this one computes on. Left in order at the end.

    `backend` is gloo (on CPUs), nccl (a GPU for each rank) or auto: nccl if every rank has a GPU of its own, else gloo.
    Nobody waits longer than `timeout` seconds for another. After an error a rank just ends: the others see its
    connection close, and end too. Raises BackendError, on every rank, if nccl is asked for and a rank has no GPU.
    """
    timeout = timedelta(seconds=timeout)
    store = dist.HashStore()
    if env.world_size > 1:
        os.environ.update(MASTER_ADDR=env.master_addr, MASTER_PORT=str(env.master_port))
        store, _, _ = next(dist.rendezvous("env://", env.rank, env.world_size, timeout=timeout))
    store.set(f"gpu/{env.rank}", own_gpu(env.local_rank))
    gpus = [store.get(f"gpu/{rank}").decode() for rank in range(env.world_size)]
    backend = choose_backend(backend, gpus, dist.is_nccl_available())
    if backend == "nccl":
        device = torch.device("cuda", env.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    # With nccl, gloo stays for what is on the CPU: a flag, an object.
    both = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
    store = dist.PrefixStore("ranks", store)
    dist.init_process_group(both, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout)
    yield device
    # Rank 0 holds the store: it must not leave first. Not by barrier(), and not once: gloo's threads free tensors of
    # earlier collectives late, for which they need Python's lock; destroy_process_group holds that and waits for the
    # threads, so that now and then a rank hung. Waiting for a sum lets them have it, and `end` is freed after all.
    end = torch.zeros(1)
    for _ in range(LEAVE_TAKING):
        dist.all_reduce(end)
    dist.destroy_process_group()


def own_gpu(local_rank):
    """A name, unique in the world, of the GPU that a rank would take; empty if it has none.

    Slurm's --gpus-per-task shows each rank its own GPU only, as number 0; torchrun shows it all GPUs of the node.
    """
    count = torch.cuda.device_count()
    return str(torch.cuda.get_device_properties(local_rank % count).uuid) if count else ""


class BackendError(ValueError):
    """The backend that was asked for cannot be had."""


def choose_backend(wanted, gpus, nccl_available):
    """gloo or nccl, from what was asked for and the GPU of each rank. BackendError if it cannot be had."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    shared = [rank for rank, gpu in enumerate(gpus) if gpu and gpus.index(gpu) != rank]
    if wanted == "gloo" or (wanted == "auto" and (without or shared or not nccl_available)):
        return "gloo"
    if without:
        raise BackendError(
            f"--backend nccl needs a GPU for each rank, and rank {without[0]} sees none; "
            "ask Slurm for them with --gpus-per-task=1, or use --backend gloo"
        )
    if shared:
        raise BackendError(
            f"--backend nccl needs a GPU for each rank, and ranks {gpus.index(gpus[shared[0]])} and {shared[0]} share "
            "one; start fewer ranks on that node, or use --backend gloo"
        )
    if not nccl_available:
        raise BackendError("--backend nccl: this build of torch has no NCCL; use --backend gloo, or a CUDA build")
    return "nccl"


def gather(value):
    """The values of all ranks, in the order of ranks, on each rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
