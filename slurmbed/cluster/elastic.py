"""Elastic nodes: Slurm's power saving programs ask for them, and an agent on the host starts and stops them.

The agent is a background process, one for each cluster with such nodes. It reads what
configs/etc/slurm/power/watch prints in slurmctld's container, starts and stops containers while no command changes the
cluster, and ends when the cluster is stopped or removed.
https://slurm.schedmd.com/power_save.html
"""

import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from pathlib import Path

from slurmbed.cluster.lock import FOLDER, lock, open_file
from slurmbed.engine.client import Engine
from slurmbed.engine.compose import container_name
from slurmbed.engine.overlay import SERVICES
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError, WaitTimeout
from slurmbed.process import Result, spawn
from slurmbed.slurm.records import Node
from slurmbed.spec.slices import Slice
from slurmbed.wait import Pending, wait_until

RESTART = 15  # seconds that slurmctld's container may be down before the cluster counts as stopped
HANDOVER = 2 * RESTART  # seconds that a new agent waits for the end of the old one
SESSION = 3600  # seconds, after which the agent starts `watch` again


AsRoot = Callable[[Sequence[str]], Result]
Say = Callable[[str], None]


def attend(
    engine: Engine, name: str, nodes: Sequence[Node], slices: Sequence[Slice], as_root: AsRoot, tell: Say
) -> bool:
    """Declare the elastic nodes and start the agent. Returns True if there are such nodes."""
    if not any(node_slice.elastic for node_slice in slices):
        return False
    declare(nodes, slices, as_root)
    start_agent(engine, name, tell)
    return True


def declare(nodes: Sequence[Node], slices: Sequence[Slice], as_root: AsRoot) -> None:
    """Create the missing records of elastic nodes, and keep Slurm from suspending the other nodes.

    Slurm ignores SuspendExcNodes for nodes without a record, and ignores an update that does not change the value. So
    the value is cleared, then set, once the records exist.
    """
    known = len(nodes)
    missing = list(enumerate(slices, start=1))[known:]
    for record, group in groupby(missing, key=lambda each: each[1].record):
        numbers = [number for number, _ in group]
        names = f"node-[{numbers[0]}-{numbers[-1]}]"
        as_root(["scontrol", "create", f"NodeName={names}", "State=CLOUD", *record.split()]).check()
    lasting = sum(not node_slice.elastic for node_slice in slices)
    for names in ("", f"node-[1-{lasting}]"):
        as_root(["scontrol", "update", f"SuspendExcNodes={names}"]).check()


def ways_to_start(lasting: int, nodes: int, services: Sequence[str] = SERVICES) -> list[tuple[str, ...]]:
    """Compose's arguments, one call after another, that make the containers of all nodes and start the lasting ones."""
    if lasting == nodes:
        return [("up", "--detach", "--no-build", "--remove-orphans")]
    started = (*services, *(f"node-{number}" for number in range(1, lasting + 1)))
    return [("create", "--no-build", "--remove-orphans"), ("up", "--detach", "--no-build", *started)]


def log_file(engine: Engine, name: str) -> Path:
    return FOLDER / f"slurmbed-{re.sub('[^A-Za-z0-9]', '', engine.info.id)}-{name}-power.log"


def start_agent(engine: Engine, name: str, tell: Say) -> None:
    """Start the agent of a cluster. If one runs already, the new one ends by itself."""
    log = log_file(engine, name)
    descriptor = open_file(log)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    spawn([sys.executable, "-m", "slurmbed.cluster.elastic", name], descriptor)
    tell(f"nodes of elastic groups come when jobs need them; log: {log}")


def agent(name: str) -> None:
    """Do what Slurm asks for until the cluster ``name`` is stopped or removed."""
    engine = Engine()
    log = log_file(engine, name)
    try:
        with lock(engine.info.id, f"{name}-power", f"agent --name {name}", say, longest=HANDOVER):
            while runs(engine, name):
                with logged():
                    watch = ["/etc/slurm/power/watch"]
                    running = engine.start(container_name(name, "slurmctld"), watch, user="slurm", timeout=SESSION)
                    for line in running.lines():
                        with logged():
                            settle(engine, name, line.split())
                time.sleep(1)  # do not retry at once after a failure
            say("the cluster is stopped")
    except WaitTimeout:
        return  # another one serves this cluster
    with lock(engine.info.id, name, f"agent --name {name}", say):  # not while a command removes the cluster
        if not Snapshot.take(engine, name).exists:
            log.unlink(missing_ok=True)


def runs(engine: Engine, name: str) -> bool:
    """Whether slurmctld's container runs, or does so within RESTART seconds."""

    def check() -> bool:
        slurmctld = Snapshot.take(engine, name).services.get("slurmctld")
        if slurmctld and not slurmctld.is_running:
            raise Pending(slurmctld.status)
        return bool(slurmctld)

    try:
        return wait_until(check, what="slurmctld's container runs", timeout=RESTART, interval=1)
    except WaitTimeout:
        return False


def settle(engine: Engine, name: str, wanted: Sequence[str]) -> None:
    """Start the elastic nodes that are wanted, and stop the others."""
    with lock(engine.info.id, name, f"agent --name {name}", say):
        seen = Snapshot.take(engine, name)
        if not seen.is_running:
            return
        for each in seen.elastic_nodes:
            if each.service in wanted and not each.is_running:
                say(f"start {each.service}")
                engine.act("start", each.name)
            elif each.service not in wanted and each.is_running:
                say(f"stop {each.service}")
                engine.act("stop", each.name)


@contextmanager
def logged() -> Iterator[None]:
    """Write the engine's failures to the log: Slurm asks again for a node that did not come."""
    try:
        yield
    except SlurmbedError as error:
        say(str(error))


def say(text: str) -> None:
    print(f"{datetime.now():%F %T} {text}", flush=True)


if __name__ == "__main__":
    agent(sys.argv[1])
