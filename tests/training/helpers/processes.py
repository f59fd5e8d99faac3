"""Starts ranks on this host: of a function, or of train.py. Every wait is bounded, and nothing outlives a test."""

import json
import os
import random
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = 300  # seconds; on idle cores the longest of these runs takes 5
PORTS = range(20000, 32768)  # below those that the operating system gives to outgoing connections

FORKS = mp.get_context("forkserver")  # one process imports everything and forks the ranks, which start in milliseconds
FORKS.set_forkserver_preload(["preloaded"])


def spawn(worker, world_size, folder):
    """The results of worker(rank, world_size) by rank, connected by gloo. A child's traceback is raised."""
    arguments = (worker, world_size, str(folder))
    context = mp.start_processes(connected, arguments, nprocs=world_size, join=False, start_method="forkserver")
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
    """The exit status and the output of a rank of train.py."""

    code: int
    stdout: str
    stderr: str

    def record(self):
        return json.loads(self.stdout.splitlines()[0])


def train(*arguments, world_size=1, program="import train; train.main()", timeout=TIMEOUT):
    """Run train.py on so many ranks and wait for all of them; fails if they have not ended in time."""
    environ = {}
    if world_size > 1:
        environ = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world_size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
            argv = ["train.py", *map(str, arguments)]
            ranks.append(FORKS.Process(target=run_program, args=(program, argv, environ | own, f"{folder}/{rank}")))
        try:
            for process in ranks:
                process.start()
            deadline = time.monotonic() + timeout
            return [collected(process, deadline, f"{folder}/{rank}") for rank, process in enumerate(ranks)]
        finally:
            for process in ranks:
                process.kill()


def run_program(program, argv, environ, output):
    """Act as `python3 -c program argv...` with stdout and stderr in files."""
    for number, stream in enumerate(("stdout", "stderr"), start=1):
        with open(f"{output}.{stream}", "w") as file:
            os.dup2(file.fileno(), number)
    assert "preloaded" in sys.modules, (
        "the fork server passes over what it cannot import: python3 -c 'import preloaded'"
    )
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        del os.environ[name]
    os.environ.update(environ, OMP_NUM_THREADS="1")
    sys.argv = argv
    torch.set_num_threads(1)
    exec(program, {"__name__": "__main__"})


def collected(process, deadline, output):
    process.join(timeout=max(0.1, deadline - time.monotonic()))
    assert process.exitcode is not None, f"not over in time:\n{Path(output + '.stdout').read_text()}"
    return Ended(process.exitcode, *(Path(f"{output}.{stream}").read_text() for stream in ("stdout", "stderr")))


def succeed(*arguments, **options):
    """As `train`, and every rank must end well."""
    ranks = train(*arguments, **options)
    for rank, ended in enumerate(ranks):
        assert ended.code == 0, f"rank {rank} ended with {ended.code}:\n{ended.stdout}\n{ended.stderr}"
    return ranks


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def free_port():
    """A port that nobody listens on, and that no outgoing connection takes before its holder listens."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
