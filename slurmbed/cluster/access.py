"""How programs of the host reach a cluster: Slurm's commands on PATH, and ssh."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurmbed.cluster.cluster import Cluster
from slurmbed.engine.overlay import REST
from slurmbed.errors import UsageError
from slurmbed.project import ROOT, command
from slurmbed.spec.model import USERS

if TYPE_CHECKING:
    from slurmbed.slurm.rest import Rest

SHIMS = ROOT / "scripts" / "shims"
"""sbatch, srun and the other commands, for PATH."""

LIFESPAN = 3600  # seconds that a token is valid unless told otherwise


def environment(cluster: Cluster, user: str, before: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the commands in SHIMS reach the cluster as ``user``; ``before`` has PATH."""
    path = [each for each in before.get("PATH", os.defpath).split(os.pathsep) if each != str(SHIMS)]
    return {
        "SLURMBED_NAME": cluster.name,
        "SLURMBED_LOGIN": cluster.container_name("login"),
        "SLURMBED_USER": user,
        "SLURMBED_SHARED": ":".join(map(str, cluster.choices().shared)),
        "PATH": os.pathsep.join([str(SHIMS), *path]),
    }


def rest_url(cluster: Cluster) -> str:
    """The address of slurmrestd on this machine. UsageError if the cluster has none, or does not run."""
    cluster.require_running()
    daemon = cluster.snapshot.services.get(REST)
    if not (daemon and daemon.rest_port):
        raise UsageError(f"the cluster {cluster.name} has no {REST}", command("up", name=cluster.name, rest=True))
    return f"http://127.0.0.1:{daemon.rest_port}"


def token(cluster: Cluster, user: str = "", lifespan: int = LIFESPAN) -> str:
    """A token that authenticates a user to slurmrestd.

    Args:
        user: default: the cluster's first user.
        lifespan: seconds.

    Raises:
        UsageError: the cluster has no such user.
    """
    user, spec = user or cluster.user, cluster.snapshot.spec
    names = [each.name for each in (spec.users if spec else USERS)]
    if user not in names:
        raise UsageError(f"the cluster {cluster.name} has no user {user}", f"choose from {', '.join(names)}")
    made = cluster.as_root(["scontrol", "token", f"username={user}", f"lifespan={lifespan}"]).check().stdout
    return made.strip().removeprefix("SLURM_JWT=")


def rest(cluster: Cluster, user: str = "", lifespan: int = LIFESPAN) -> "Rest":
    """A client of the cluster's slurmrestd, as the user; arguments and errors as for ``rest_url`` and ``token``."""
    from slurmbed.slurm.rest import Rest  # who needs none does not wait for requests

    return Rest(rest_url(cluster), token(cluster, user, lifespan))


def folder(name: str) -> Path:
    """Where the user's key for ssh into the cluster ``name`` is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "slurmbed" / name


def ssh_config(cluster: Cluster, user: str) -> str:
    """A Host entry for ssh, named after the cluster, with the user's own key of the cluster and its host key."""
    kept = folder(cluster.name)
    kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = cluster.snapshot.services["login"].ssh_port
    key = cluster.exec("login", ["cat", f"/home/{user}/.ssh/id_ed25519"], user=user).check().stdout
    host_key = cluster.exec("login", ["cut", "-d", " ", "-f", "2-", "/etc/ssh/ssh_known_hosts"]).check().stdout
    write_private(kept / f"id_{user}", key)
    write_private(kept / "known_hosts", f"[127.0.0.1]:{port} {host_key}")
    options = {
        "HostName": "127.0.0.1",
        "Port": port,
        "User": user,
        "IdentityFile": f'"{kept / f"id_{user}"}"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PasswordAuthentication": "no",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{kept / "known_hosts"}"',
    }
    lines = (f"  {name} {value}" for name, value in options.items())
    return "\n".join((f"Host {cluster.name}", *lines, ""))


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, also before it is written."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
