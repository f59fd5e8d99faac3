"""Starts ranks on this host: of a function, or of train.py. Every wait is bounded, and nothing outlives a test."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from conftest import WORKSPACE

TIMEOUT = 90  # seconds


def spawn(worker, world_size, folder):
    """The results of worker(rank, world_size) by rank, connected by gloo. A child's traceback is raised."""
    context = mp.spawn(connected, (worker, world_size, str(folder)), nprocs=world_size, join=False)
    deadline = time.monotonic() + TIMEOUT
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, f"{worker.__name__} took more than {TIMEOUT} s on {world_size} ranks"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


def connected(rank, worker, world_size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    torch.save(worker(rank, world_size), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@dataclass
class Ended:
    """What is left of a rank of train.py."""

    code: int
    stdout: str
    stderr: str

    def record(self):
        return json.loads(self.stdout.splitlines()[0])


def train(*arguments, world_size=1, program="import train; train.main()", timeout=TIMEOUT):
    """Run train.py on so many ranks and wait for all of them; fails if they have not ended in time."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(WORKSPACE), PYTHONDONTWRITEBYTECODE="1")
    if world_size > 1:
        environ.update(WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ranks = []
    try:
        for rank in range(world_size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(command, env={**environ, **own}, **pipes))
        deadline = time.monotonic() + timeout
        return [collected(rank, deadline) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def collected(process, deadline):
    stdout, stderr = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    return Ended(process.returncode, stdout, stderr)


def succeed(*arguments, **options):
    """As `train`, and every rank must end well."""
    ranks = train(*arguments, **options)
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, f"rank {rank} ended with {ended.code}:\n{ended.stdout}\n{ended.stderr}"
    return ranks


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
