"""`make bench`: `make up` as a process beside a bare `docker compose up` of as many idle containers, in one run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import click
from rich.console import Console

from dev import bench_containers, tables
from dev.tables import seconds
from slurmbed.cluster import access, images
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Choices, Settings
from slurmbed.errors import CommandError, UsageError
from slurmbed.process import run
from slurmbed.project import ROOT

TIMEOUT = 900  # seconds for one command
SHORT_JOBS = 20
CALLS = 20  # of squeue, in each way
ITSELF, BY_EXEC, BY_SHIM = "squeue in the cluster", "by docker exec", "by the shim"
COLD, WARM, NOTHING = "make up, nothing there", "make up, after make down", "make up, nothing to do"
BARE = "a bare docker compose up"


class Bare:
    """``docker compose`` on as many containers of the node image that only sleep."""

    def __init__(self, name: str, containers: int):
        image = images.image("node", Choices())
        service = {"image": image, "init": True, "command": ["sleep", "3600"]}
        self.project = json.dumps({"services": {f"idle-{i}": service for i in range(containers)}})
        self.argv = ["docker", "compose", "-p", name, "-f", "-"]

    def up(self) -> None:
        run([*self.argv, "up", "--detach"], timeout=TIMEOUT, stdin=self.project).check()

    def remove(self) -> None:
        run([*self.argv, "down", "--volumes", "--timeout", "1"], timeout=TIMEOUT, stdin=self.project).check()


class Real:
    """make's commands, as a user types them, on a cluster of their own."""

    def __init__(self, name: str, nodes: int, workspace: str):
        self.name, self.arguments = name, [f"NAME={name}", f"NODES={nodes}", f"WORKSPACE={workspace}"]

    def make(self, target: str, *arguments: str) -> str:
        # Not as a part of the `make bench` that runs this.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        argv = ["make", "--directory", str(ROOT), target, f"NAME={self.name}", *arguments]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise CommandError(f"exit status {done.returncode}: {' '.join(argv)}", "", done.stdout + done.stderr)
        return done.stdout

    def up(self) -> str:
        return self.make("up", *self.arguments[1:], "TIMELINE=1")

    def down(self) -> None:
        self.make("down")

    def clean(self) -> None:
        Cluster(Settings(name=self.name)).clean()


@click.command()
@click.option("--name", default="slurmbed", show_default=True, help="prefix of the clusters' names")
@click.option("--nodes", default="2", show_default=True, help="numbers of nodes, with commas between, like 2,16,64")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="runs of each")
def bench(name: str, nodes: str, rounds: int) -> None:
    """Compare starts of a cluster with a bare start of as many containers; time queued jobs, shims and containers."""
    console = Console(width=100)
    console.print(f"slurmbed --help: {help_seconds():.2f} s (median of 5)", highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        for count in map(int, nodes.split(",")):
            taken, timeline = alternate(f"{name}-bench", count, rounds, folder)
            console.print(tables.ratios(f"{count} nodes, {count + 4} containers", BARE, taken))
            console.print(f"where the time went in the last cold start of {count} nodes:\n{timeline}", markup=False)
        with small_cluster(f"{name}-bench", folder) as cluster:
            rate, taken = short_jobs(cluster), calls(cluster, folder)
        console.print(f"queued short jobs on 2 CPUs: {rate:.1f} ended a second ({SHORT_JOBS} jobs)", highlight=False)
        console.print(tables.differences("squeue from this machine", ITSELF, taken))
        try:
            with small_cluster(f"{name}-bench", folder, containers=True) as cluster:
                for shown in bench_containers.measured(cluster):
                    console.print(shown)
        except UsageError as error:
            console.print(f"containers in jobs: not measured: {error}", highlight=False)


def help_seconds() -> float:
    command = [f"{os.path.dirname(sys.executable)}/slurmbed", "--help"]
    return median(seconds(lambda: run(command, timeout=30).check()) for _ in range(5))


def alternate(name: str, nodes: int, rounds: int, workspace: str) -> tuple[dict[str, list[float]], str]:
    """Seconds of each kind of start, one after another in every round, and the last timeline of a cold one."""
    real, bare = Real(name, nodes, workspace), Bare(f"{name}-idle", nodes + 4)
    taken: dict[str, list[float]] = {kind: [] for kind in (BARE, COLD, WARM, NOTHING)}
    timeline = ""
    try:
        real.up()  # builds the images if they are not there
        real.clean()
        for _ in range(rounds):
            taken[BARE].append(seconds(bare.up))
            bare.remove()
            started = time.perf_counter()
            printed = real.up()
            taken[COLD].append(time.perf_counter() - started)
            timeline = with_the_rest(taken[COLD][-1], printed)
            taken[NOTHING].append(seconds(real.up))
            real.down()
            taken[WARM].append(seconds(real.up))
            real.clean()
    finally:
        bare.remove()
        real.clean()
    return taken, timeline


def with_the_rest(took: float, printed: str) -> str:
    """The timeline that `make up` printed, and a row for what it cannot see: seconds of make and of Python's start."""
    rows = re.findall(r"^│ (.*\S) +│ +([\d.]+) │$", printed.partition("where the time went")[2], re.MULTILINE)
    rest = took - sum(float(seconds) for _, seconds in rows)
    return "\n".join(f"  {name:26}{float(seconds):6.2f}" for name, seconds in [("make, Python", rest), *rows])


@contextmanager
def small_cluster(name: str, workspace: str, containers: bool = False) -> Iterator[Cluster]:
    """Two nodes of a CPU."""
    cluster = Cluster(Settings(name=name, nodes=2, cpus=1, workspace=workspace, containers=containers))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.clean()


def short_jobs(cluster: Cluster) -> float:
    """Jobs of one CPU that end at once, a second, when more are queued than there are CPUs."""
    return SHORT_JOBS / seconds(lambda: cluster.slurm.runner(batch()).check())


def batch() -> list[str]:
    """Submit the jobs, and wait for the last: one that depends on all."""
    script = (
        f"for i in $(seq {SHORT_JOBS}); do sbatch --parsable --output=/dev/null --wrap true; done >/tmp/ids; "
        'exec sbatch --wait --output=/dev/null --dependency="afterany:$(paste -sd: /tmp/ids)" --wrap true'
    )
    return ["bash", "-c", script]


def calls(cluster: Cluster, workspace: str) -> dict[str, list[float]]:
    """Milliseconds of squeue in the cluster, by `docker exec` and by the shim on this machine, in turn."""
    env = {**os.environ, **access.environment(cluster, cluster.user, os.environ)}
    by_exec = ["docker", "exec", cluster.container_name("login"), "squeue"]
    by_shim = [str(shutil.which("squeue", path=env["PATH"]))]
    inside = "began=$EPOCHREALTIME; squeue >&2; ended=$EPOCHREALTIME; echo $((${ended/./} - ${began/./}))"
    taken: dict[str, list[float]] = {how: [] for how in (ITSELF, BY_EXEC, BY_SHIM)}

    def call(argv: list[str]) -> float:
        started = time.perf_counter()
        subprocess.run(
            argv, env=env, cwd=workspace, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60
        )
        return (time.perf_counter() - started) * 1000

    for _ in range(CALLS):
        taken[ITSELF].append(int(cluster.slurm.runner(["bash", "-c", inside]).check().stdout) / 1000)
        taken[BY_EXEC].append(call(by_exec))
        taken[BY_SHIM].append(call(by_shim))
    return taken
