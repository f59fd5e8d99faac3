"""Other projects' programs as PyPI has them, each in a virtual environment of its own, on a page of docs/clients/."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import engine
from harness.commands import typed_environment
from harness.internals import ROOT
from harness.pages import page

# What the pages' commands are here: cluster and slurmbed are there already. If root runs the tests, jobs write to its
# folders too: umask.
PRELUDE = """
[ "$(id -u)" != 0 ] || umask 0
export PATH="$VENV/bin:$PATH"
pip() { command pip --quiet "$@"; }
slurmbed() {
  case "$*" in
    up*) ;;
    'exec -- '*pip* | 'exec -- '*venv*) shift 2; $IN_THE_CLUSTER "$@" ;;
    *) PYTHONPATH=$CLONE $PYTHON -c 'from slurmbed.cli.main import main; main()' "$@" ;;
  esac
}
"""


@pytest.fixture
def with_a_network(slurm_cluster) -> list[str]:
    """A command that runs others as alice on a node that reaches what this machine reaches, as clusters may not."""
    uid, gid = (
        engine.execute(slurm_cluster, "login", ["id", word, "alice"]).check().stdout.strip() for word in ("-u", "-g")
    )
    authorities = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
    trusted = ("--volume", f"{authorities}:/authorities:ro", "--env", "PIP_CERT=/authorities")
    return [
        *("docker", "run", "--rm", "--name", f"{slurm_cluster.name}-network", "--network", "host"),
        *("--entrypoint", "env", "--user", f"{uid}:{gid}"),
        *("--volumes-from", engine.container(slurm_cluster, "login"), "--env", "HOME=/home/alice"),
        *(trusted if Path(authorities).is_file() else ()),
        engine.inspect(slurm_cluster, "login")["Config"]["Image"],
    ]


@pytest.fixture
def follow(slurm_cluster, with_a_network, workspace, tmp_path) -> Callable[..., list[str]]:
    """follow("submitit"): do what docs/clients/submitit.md says, in a folder that the cluster sees under its own path.

    others: words of the page, and what stands for each here. Gives the lines that the page's last commands print.
    """

    def follow(name: str, others: Mapping[str, str] | None = None) -> list[str]:
        folder = workspace / name
        folder.mkdir()
        folder.chmod(0o777)
        text = page(f"clients/{name}", slurm_cluster.name, others)
        text.write(folder)
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
        *prepare, use = text.commands
        script = "\n".join([PRELUDE, *prepare, "echo '---- here'", use])
        env = {name: value for name, value in typed_environment().items() if not name.startswith("XDG_")}
        env |= {
            "VENV": str(tmp_path / "venv"),
            "CLONE": str(ROOT),
            "PYTHON": sys.executable,
            "IN_THE_CLUSTER": " ".join(with_a_network),
            "SLURMBED_NAME": slurm_cluster.name,
            "HOME": str(tmp_path / "home"),
            "DOCKER_CONFIG": os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker")),
            "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"),
        }
        (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
        argv = ["bash", "-ec", script]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.partition("---- here\n")[2].splitlines()

    return follow
