"""`slurmbed export-logs`: logs, and the state of Slurm and Docker, in one folder, without secrets."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slurmbed.cluster.host import Host
from slurmbed.cluster.plan import make_plan
from slurmbed.cluster.settings import Settings
from slurmbed.engine.client import Engine
from slurmbed.engine.compose import Compose
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError

LINES = 5000  # of a container's log
TIMEOUT = 30  # seconds for one question
JOB_LOG = 1 << 20  # bytes of a job's log, its last ones

SLURM: dict[str, Sequence[str]] = {
    "jobs.txt": ("scontrol", "show", "job"),
    "nodes.txt": ("scontrol", "show", "node"),
    "partitions.txt": ("scontrol", "show", "partition"),
    "config.txt": ("scontrol", "show", "config"),
    "sdiag.txt": ("sdiag",),
    "sinfo.txt": ("sinfo", "--list-reasons", "--long"),
    "squeue.txt": ("squeue", "--states=all", "--long"),
    "accounting.txt": ("sacct", "--allusers", "--starttime=now-7days", "--long", "--parsable2"),
    "slurm.conf": ("cat", "/etc/slurm/slurm.conf"),
}
"""Name of a file to the command that prints it, as root where slurmctld is."""

JOB_LOGS = ("scontrol", "--json", "show", "job")
"""Prints the paths of the logs of all jobs that slurmctld still knows."""


NO_PROXIES = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"))
"""Removes variables from a command's environment that docker-compose.yml uses and that may hold a password."""


def export(engine: Engine, compose: Compose, snapshot: Snapshot, folder: Path) -> Iterator[Path]:
    """Write the files, and yield the path of each.

    If a command fails, its file says so: this is for clusters that do not work.
    """
    inspected = [clean(engine.inspect(each.name)) for each in snapshot.containers]
    yield write(folder / "containers.json", json.dumps(inspected, indent=1))
    yield write(folder / "compose.yaml", or_why_not(lambda: configuration(compose, snapshot)))
    for each in snapshot.containers:
        yield write(folder / "daemons" / f"{each.service}.log", engine.logs(each.name, LINES))
    running = {each.service: each.name for each in snapshot.containers if each.is_running}
    if "slurmctld" in running:
        for name, argv in SLURM.items():
            yield write(folder / "slurm" / name, answer(engine, running["slurmctld"], argv))
        if "login" in running:
            yield from job_logs(engine, running["slurmctld"], running["login"], folder / "jobs")


def configuration(compose: Compose, snapshot: Snapshot) -> str:
    """The output of `docker compose config` for the cluster as it was made, without this machine's proxies."""
    host = Host.of(snapshot.info)
    plan = make_plan(Settings(name=snapshot.name), None, snapshot, host, keep_images=True)
    return compose.with_overlay(plan.overlay, {**plan.environment, **NO_PROXIES}, "config", timeout=TIMEOUT).output


def answer(engine: Engine, container: str, argv: Sequence[str], user: str = "root") -> str:
    return or_why_not(lambda: engine.exec(container, argv, user=user, timeout=TIMEOUT).output)


def or_why_not(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except SlurmbedError as error:
        return f"no answer: {error}\n"


def job_logs(engine: Engine, controller: str, login: str, folder: Path) -> Iterator[Path]:
    """The end of each job's log, read as the job's user."""
    try:
        jobs = json.loads(answer(engine, controller, JOB_LOGS))["jobs"]
    except ValueError:  # the file jobs.txt says why
        return
    for job in jobs:
        for path, stream in logs_of(job).items():
            name = f"{job['job_id']}-{stream}-{re.sub(r'[^A-Za-z0-9_.-]', '_', Path(path).name)[-100:]}"
            text = answer(engine, login, ["tail", "-c", str(JOB_LOG), path], job["user_name"])
            yield write(folder / name, text)


def logs_of(job: Mapping[str, str]) -> dict[str, str]:
    """Path to stream; by default one file is both. Both may have one name, in two folders."""
    output, errors = job["standard_output"], job["standard_error"]
    return {path: stream for path, stream in ((errors, "errors"), (output, "output")) if path}


def clean(inspected: dict) -> dict:
    """The output of `docker inspect`, without the values of a container's environment."""
    config = dict(inspected["Config"])
    config["Env"] = [each.partition("=")[0] + "=..." for each in config.get("Env") or ()]
    return {**inspected, "Config": config}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
