"""The ranks meet. A roll call comes before any computation, so that a wrong launch ends with its reason.

with rendezvous.process_group(env, "auto", timeout=300) as device:
    ...
"""

import json
import os
import socket
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

LEAVE_TAKING = 20  # sums before the ranks part: some milliseconds
BY_MPI = "MPI's ranks are to be started by mpirun, or by srun with --mpi=pmix"
NAMED = 6  # ranks that an error names before it counts the others


class LaunchError(ValueError):
    """The ranks did not come together as the launcher should have started them."""


class BackendError(LaunchError):
    """The backend that was asked for cannot be had."""


@contextmanager
def process_group(env, backend, timeout):
    """The ranks, connected; yields the device that this one computes on. Left in order at the end.

    `backend` is gloo (on CPUs), nccl (a GPU for each rank), mpi (started by mpirun or srun --mpi=pmix) or auto: nccl if
    every rank has a GPU of its own, else gloo. Where a launcher has connected the ranks already (Fabric, Ray Train),
    its group is taken as it is. Nobody waits longer than `timeout` seconds for another, but with mpi, which knows no
    such limit. After an error a rank just ends: the others see its connection close, and end too.

    Ends the program with the reason if a rank does not come, or comes twice, if there is nobody where MASTER_ADDR
    points to, or, on every rank, if the backend cannot be had.
    """
    given = dist.is_initialized()
    taken = given or backend == "mpi"
    try:
        device = take_group(env) if taken else connect(env, backend, timedelta(seconds=timeout))
    except LaunchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: error: {error}")
    yield device
    # Rank 0 holds the store: it must not leave first. Not by barrier(), and not once: gloo's threads free tensors of
    # earlier collectives late, for which they need Python's lock; destroy_process_group holds that and waits for the
    # threads, so that now and then a rank hung. Waiting for a sum lets them have it, and `end` is freed after all.
    end = torch.zeros(1, device=device if given else "cpu")  # who gave the group may have given no gloo with it
    for _ in range(LEAVE_TAKING):
        dist.all_reduce(end)
    if not given:
        dist.destroy_process_group()


def connect(env, backend, timeout):
    """Meet at MASTER_ADDR, call the roll, choose the backend; returns the device."""
    store = meet(env, timeout)
    gpus = [each["gpu"] for each in roll_call(store, env, timeout)]
    chosen = choose_backend(backend, gpus, dist.is_nccl_available())
    if backend == "auto" and chosen == "gloo" and any(gpus) and env.rank == 0:
        print(f"gloo, and the GPUs are idle: {obstacle(gpus, dist.is_nccl_available())}", flush=True)
    device = device_of(chosen, env.local_rank)
    # With nccl, gloo stays for what is on the CPU: a flag, an object.
    both = "cpu:gloo,cuda:nccl" if chosen == "nccl" else "gloo"
    store = dist.PrefixStore("ranks", store)
    dist.init_process_group(both, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout)
    return device


def take_group(env):
    """The group that the launcher has made, or that MPI makes, which knows all ranks; returns the device."""
    if not dist.is_initialized():
        try:
            dist.init_process_group("mpi")
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"--backend mpi: {str(error).splitlines()[0]}; {BY_MPI}") from None
    told, found = (env.rank, env.world_size), (dist.get_rank(), dist.get_world_size())
    if told != found:
        raise LaunchError(
            f"{env.launcher} says rank {told[0]} of {told[1]}, {dist.get_backend()} rank {found[0]} of {found[1]}; "
            f"{BY_MPI}"
        )
    return device_of(dist.get_backend_config(), env.local_rank)


def meet(env, timeout):
    """The store that rank 0 holds, under the job's own prefix: two jobs at one port do not meet."""
    if env.world_size == 1:
        return dist.HashStore()
    address = env.master_addr, env.master_port
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun holds it, and keeps it when it starts the ranks again: what the earlier ones said is still there.
            store, _, _ = next(dist.rendezvous("env://", env.rank, env.world_size, timeout=timeout))
            store = dist.PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        else:
            store = dist.TCPStore(*address, is_master=env.rank == 0, timeout=timeout, wait_for_workers=False)
    except dist.DistError as error:
        where, why = f"{address[0]}:{address[1]}", str(error).splitlines()[0]
        seconds = timeout.total_seconds()
        if env.rank == 0:
            raise LaunchError(
                f"rank 0 on {socket.gethostname()} cannot hold the meeting at {where}: {why}; a port that another job "
                "has taken? Derive it from the job's id, as jobs/launch.sh does"
            ) from None
        raise LaunchError(
            f"rank {env.rank} on {socket.gethostname()} found nobody at {where} within {seconds:g} s ({why}); "
            "MASTER_ADDR must be the name of the node that has rank 0, the same on every node"
        ) from None
    return dist.PrefixStore(f"job {env.job_id}", store)


def roll_call(store, env, timeout):
    """What each rank says of itself, by rank, once all are there."""
    try:
        come_forward(store, env)
        wait_for_all(store, env, timeout)
        return [json.loads(store.get(f"rank {rank}")) for rank in range(env.world_size)]
    except dist.DistError:
        raise LaunchError("the rank that holds the meeting has ended, and says why") from None


def come_forward(store, env):
    """Say that this rank is there. LaunchError, told to the others too, if another process has said so."""
    mine = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "gpu": own_gpu(env.local_rank)})
    first = store.compare_set(f"rank {env.rank}", "", mine).decode()
    if first != mine:
        trouble = (
            f"two processes say that they are rank {env.rank} of {env.world_size}: on {json.loads(first)['host']} and "
            f"on {socket.gethostname()}; was the node's number expanded in the batch script, which runs on one node?"
        )
        store.set("trouble", trouble)
        store.set("over", "")
        raise LaunchError(trouble)
    if store.add("came", 1) == env.world_size:
        store.set("over", "")


def wait_for_all(store, env, timeout):
    """LaunchError if a rank has not come in time, or another rank has found the launch wrong."""
    try:
        store.wait(["over"], timeout)
    except dist.DistStoreError:
        raise LaunchError(absent(store, env, timeout.total_seconds())) from None
    if store.check(["trouble"]):
        raise LaunchError(store.get("trouble").decode())


def absent(store, env, seconds):
    """What to say of ranks that did not come."""
    came, missing = {}, []
    for rank in range(env.world_size):
        if store.check([f"rank {rank}"]):
            came.setdefault(json.loads(store.get(f"rank {rank}"))["host"], []).append(rank)
        else:
            missing.append(rank)
    there = "; ".join(f"{host}: {some(ranks)}" for host, ranks in came.items())
    return (
        f"of {env.world_size} ranks these did not come within {seconds:g} s: {some(missing)}. There are, by node: "
        f"{there}. Does every node start as many as the world size says, with the same MASTER_ADDR?"
    )


def some(ranks):
    """Ranks for an error: the first few, and how many more."""
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return ", ".join(map(str, ranks[:NAMED])) + more


def device_of(backend, local_rank):
    """The rank's GPU with nccl, else the CPU."""
    if "nccl" not in backend:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def own_gpu(local_rank):
    """A name, unique in the world, of the GPU that a rank would take; empty if it has none.

    Slurm's --gpus-per-task shows each rank its own GPU only, as number 0; torchrun shows it all GPUs of the node.
    """
    count = torch.cuda.device_count()
    return str(torch.cuda.get_device_properties(local_rank % count).uuid) if count else ""


def choose_backend(wanted, gpus, nccl_available):
    """gloo or nccl, from what was asked for and the GPU of each rank. BackendError if it cannot be had."""
    against_nccl = obstacle(gpus, nccl_available)
    if wanted == "gloo" or (wanted == "auto" and against_nccl):
        return "gloo"
    if against_nccl:
        raise BackendError(f"--backend {against_nccl}, or use --backend gloo")
    return "nccl"


def obstacle(gpus, nccl_available):
    """Why nccl cannot be had, and what to do; empty if it can. `gpus` has each rank's, empty if it sees none."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    shared = [rank for rank, gpu in enumerate(gpus) if gpu and gpus.index(gpu) != rank]
    if without:
        return f"nccl needs a GPU for each rank, and rank {without[0]} sees none; ask Slurm for them, --gpus-per-node=N"
    if shared:
        both = f"ranks {gpus.index(gpus[shared[0]])} and {shared[0]}"
        return f"nccl needs a GPU for each rank, and {both} share one; start fewer ranks on that node"
    return "" if nccl_available else "nccl needs a CUDA build of torch, and this one has no NCCL; take such a build"


def gather(value):
    """The values of all ranks, in the order of ranks, on each rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
