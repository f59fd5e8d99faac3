"""How fast ranks talk: latency and bus bandwidth of the collectives by size, and what iperf3 gets between two of them.

    sbatch jobs/collectives.sbatch [--largest BYTES]

Bus bandwidth is nccl-tests' (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): what every rank
sends a second, if the collective sends no more than it must. So it can be held against the limit of the network.
Sizes are nccl-tests' too: of the whole tensor, of which all_gather and reduce_scatter give or leave each rank its part.
"""

import argparse
import json
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from gpt.config import Config
from ranks import environment, rendezvous
from ranks.sockets import Peers, reduced

SMALLEST, LARGEST = 1 << 10, 1 << 26  # bytes
IPERF_SECONDS, TIMEOUT = 3, 120
BUDGET = 0.5  # seconds for one collective at one size, which is repeated meanwhile
# All ranks send and receive at once, except in a broadcast.
LIMIT = {"broadcast": "one_way"}


def bus_bandwidth(collective, size, seconds, ranks):
    """Bytes a second: `size` over `seconds`, times the share of the tensor that every rank must send."""
    share = (ranks - 1) / ranks
    factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "broadcast": 1}
    return factor[collective] * size / seconds


def iperf_bandwidth(text):
    """Bytes a second in each direction, the mean of both if both were used, from what `iperf3 --json` prints.

    ValueError if it holds an error or no result.
    """
    report = json.loads(text)
    sums = [report.get("end", {}).get(name) for name in ("sum_received", "sum_received_bidir_reverse")]
    rates = [each["bits_per_second"] / 8 for each in sums if each]
    if "error" in report or not rates:
        raise ValueError(f"iperf3: {report.get('error', 'no result')}")
    return statistics.mean(rates)


def iperf(env, options):
    """Bytes a second between ranks 0 and 1 by iperf3, told to every rank; None if it could not be had."""
    found, server = [None] * env.world_size, None
    with socket.socket() as probe:
        probe.bind(("", 0))
        dist.all_gather_object(found, probe.getsockname()[1])
    command = ["iperf3", "--port", str(found[0])]
    if env.rank == 0 and shutil.which("iperf3"):
        server_command = [*command, "--server", "--one-off", "--forceflush"]
        # Without a buffer: unread lines stay where select sees them.
        server = subprocess.Popen(server_command, stdout=subprocess.PIPE, bufsize=0)
        # Ready, ended, or silent for too long: then the client says what it did not reach.
        while select.select([server.stdout], [], [], TIMEOUT)[0] and (line := server.stdout.readline()):
            if b"listening" in line:
                break
    dist.barrier()
    dist.all_gather_object(found, iperf_client(command, env.master_addr, options) if env.rank == 1 else None)
    if server:
        server.terminate()
        server.communicate(timeout=TIMEOUT)
    return found[1]


def iperf_client(command, server, options):
    arguments = ["--client", server, "--json", "--time", str(IPERF_SECONDS), *options]
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT)
        return iperf_bandwidth(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"no limit from iperf3: {error}", flush=True)
        return None


def collectives(size, ranks, peers):
    """Label -> (collective, function) on float32 tensors of `size` bytes in all."""
    count = max(1, size // 4 // ranks) * ranks
    whole, part = torch.ones(count), torch.ones(count // ranks)
    parts = list(torch.empty(count).chunk(ranks))

    def reduce_scatter():
        return reduced(torch.add, peers.exchange(whole.chunk(ranks)), whole.dtype)

    return {
        "all_reduce by sockets.py": ("all_reduce", lambda: peers.all_reduce(whole, dist.ReduceOp.SUM, whole.dtype)),
        "all_reduce by gloo": ("all_reduce", lambda: dist.all_reduce(whole)),
        "all_gather by gloo": ("all_gather", lambda: dist.all_gather(parts, part)),
        # The gloo of torch 2.6 has no reduce_scatter.
        "reduce_scatter by sockets.py": ("reduce_scatter", reduce_scatter),
        "broadcast by gloo": ("broadcast", lambda: dist.broadcast(whole, 0)),
    }


def median_seconds(function):
    """The median time of a call, each taken on the rank where it took longest."""
    function()
    times = [timed(function)]
    shared = torch.tensor(times[0])
    dist.broadcast(shared, 0)  # every rank calls as often as rank 0 finds right
    times += [timed(function) for _ in range(max(4, min(100, int(BUDGET / shared.item()))))]
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.median().item()


def timed(function):
    dist.barrier()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(env, largest, limits):
    """A row for each collective and size; rank 0 prints them as they come."""
    peers = Peers(dist.group.WORLD, TIMEOUT)
    rows = []
    say(env, f"{'collective':29} {'bytes':>10} {'latency ms':>11} {'bus GB/s':>9}  of the limit")
    size = SMALLEST
    while size <= largest:
        for label, (collective, function) in collectives(size, env.world_size, peers).items():
            seconds = median_seconds(function)
            bandwidth = bus_bandwidth(collective, size, seconds, env.world_size)
            limit = limits[LIMIT.get(collective, "both_ways")]
            share = bandwidth / limit if limit else None
            row = {"label": label, "collective": collective, "bytes": size, "seconds": seconds}
            rows.append({**row, "bus_bandwidth": bandwidth, "of_limit": share})
            shown = f"{share:.2f}" if share else "-"
            say(env, f"{label:29} {size:10,} {seconds * 1e3:11.3f} {bandwidth / 1e9:9.3f}  {shown}")
        size *= 2
    return rows


def say(env, line):
    if env.rank == 0:
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Measure the collectives between ranks.")
    parser.add_argument("--largest", type=int, default=LARGEST, help=f"bytes, {SMALLEST} or more (default: {LARGEST})")
    parser.add_argument("--run-dir", default="", help="folder for collectives.json (default: as train.py)")
    options = parser.parse_args()
    try:
        env = environment.read()
        if env.world_size < 2:
            raise ValueError("one rank has nobody to talk to; submit jobs/collectives.sbatch, or use torchrun")
        if options.largest < SMALLEST:
            raise ValueError(f"--largest must be at least {SMALLEST}, got {options.largest}")
    except ValueError as error:
        sys.exit(f"collectives.py: error: {error}")
    environment.announce(env.record("collectives"))
    with rendezvous.process_group(env, "gloo", TIMEOUT):
        limits = {"one_way": iperf(env, []), "both_ways": iperf(env, ["--bidir"])}
        for name, limit in limits.items():
            say(env, f"iperf3 {name}: {limit / 1e9:.3f} GB/s in each direction" if limit else f"iperf3 {name}: none")
        rows = measure(env, options.largest, limits)
        if env.rank == 0:
            folder = Config(run_dir=options.run_dir).run_path()
            folder.mkdir(parents=True, exist_ok=True)
            found = {"ranks": env.world_size, "limits": limits, "rows": rows}
            (folder / "collectives.json").write_text(json.dumps(found, indent=1) + "\n")
            say(env, f"written to {folder}")


if __name__ == "__main__":
    main()
