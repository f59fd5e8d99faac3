"""Lesson 2: the rendezvous by hand. Rank 0 opens a store at MASTER_ADDR:MASTER_PORT; all write to it and read from it.

lessons/follow jobs/lesson.sbatch meet
"""

import argparse
import socket
import sys
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from ranks import environment


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for the others")
    patience = parser.parse_args().timeout
    try:
        env = environment.read()
    except ValueError as error:
        sys.exit(f"meet: error: {error}")
    me, address, waits_for = f"rank {env.rank} on {socket.gethostname()}", (env.master_addr, env.master_port), "a store"
    try:
        store = TCPStore(
            *address,
            is_master=env.rank == 0,
            timeout=timedelta(seconds=patience),
            wait_for_workers=False,
        )
        store.set(f"host of {env.rank}", socket.gethostname())
        hosts = []
        for rank in range(env.world_size):
            waits_for = f"rank {rank}"
            hosts.append(store.get(f"host of {rank}").decode())  # waits until that rank has written
        if env.rank == 0:
            print(f"the store is at {address[0]}, opened by {me}")
            for rank, host in enumerate(hosts):
                print(f"rank {rank} wrote: I am on {host}")
        store.set(f"end of {env.rank}", "")
        for rank in range(env.world_size if env.rank == 0 else 0):
            store.get(f"end of {rank}")  # rank 0 holds the store: it leaves last
    except DistError:
        sys.exit(f"{me} waited {patience} s for {waits_for} at {address[0]}: nobody there")


if __name__ == "__main__":
    main()
