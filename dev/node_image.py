"""The training tests run in the image of a node, which has torch: the image, and pytest in it."""

import os
from collections.abc import Sequence
from pathlib import Path

from dev import testrun
from slurmbed.cli.console import say
from slurmbed.cluster import images
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.host import Host
from slurmbed.cluster.settings import Settings
from slurmbed.engine.overlay import security_options

# What torch and oneDNN use of a CPU, if set where `make test` runs: the lowest are ATEN_CPU_CAPABILITY=default and
# ONEDNN_MAX_CPU_ISA=SSE41.
INSTRUCTION_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
ENVIRONMENT = (*INSTRUCTION_SETS, "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp", "OMP_NUM_THREADS=1")


def built() -> str:
    """The name of the image, built if it is not there."""
    cluster = cluster_of_tests()
    plan = cluster.plan()
    cluster.build(plan.choices)
    return images.image("node", plan.choices)


def with_containers() -> list[str]:
    """Options of `docker run` for tests that start containers: the least rights, and a /tmp that takes layers."""
    apparmor = Host.of(cluster_of_tests().snapshot.info).apparmor
    profiles = ("no-new-privileges", *security_options(apparmor))
    return ["--cap-drop", "ALL", *(f"--security-opt={each}" for each in profiles), "--volume", "/tmp"]


def cluster_of_tests() -> Cluster:
    return Cluster(Settings.model_validate({"name": testrun.name(), **testrun.chosen()}), say)


def pytest(image: str, source: Path, label: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs tests of the folder ``source``, as an unprivileged user without a network.

    Args:
        label: the end of the container's name, after this run's.
        options: of `docker run`.
    """
    return [
        *("docker", "run", "--rm", "--init", "--network", "none", "--shm-size", "512m", *options),
        *("--name", f"{testrun.name()}-{label}"),
        *("--user", f"{os.getuid() or 1000}", "--volume", f"{source}:/src:ro", "--workdir", "/src"),
        *(word for variable in ENVIRONMENT for word in ("--env", variable)),
        *(image, "python3", "-m", "pytest", "-p", "no:cacheprovider", *arguments),
    ]
