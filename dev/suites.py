"""`make test`: lint and unit tests here, training tests in the node image, cluster tests on their own clusters."""

import os
import sys

import click

from dev import testrun
from slurmbed.cli.console import say
from slurmbed.cluster import images
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Settings
from slurmbed.process import run
from slurmbed.project import ROOT

SUITES = {
    "unit": ("unit",),
    "training": ("training",),
    "cluster": ("cluster",),
    "smoke": ("unit", "smoke"),  # in two minutes, once there are images
}
ALL = ("unit", "training", "cluster")
LIMIT = 4800  # seconds for one suite
# What torch and oneDNN use of a CPU, if set where `make test` runs: the lowest are ATEN_CPU_CAPABILITY=default and
# ONEDNN_MAX_CPU_ISA=SSE41.
INSTRUCTION_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
# A worker takes a file at a time. Most tests wait most of the time, so there are more workers than cores.
SIDE_BY_SIDE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "15")
# Marks are in pyproject.toml.
CLUSTER_TESTS = {
    "cluster": ("tests/cluster", *SIDE_BY_SIDE, "-m", "not matrix"),
    "smoke": ("tests/cluster", "-m", "smoke"),
    "launchers": ("tests/cluster/launchers", *SIDE_BY_SIDE),
}


@click.command()
@click.option("--only", type=click.Choice(list(SUITES)), help="one suite, or a few tests of each [default: all]")
def test(only: str | None) -> None:
    """Run lint and all tests. The exit status is that of the first suite that failed."""
    failed = 0
    for name in SUITES[only] if only else ALL:
        say(f"---- {name} tests ----")
        code = run(command(name), timeout=LIMIT, capture=False).returncode
        failed = failed or code
    sys.exit(failed)


@click.command("test-launchers")
def test_launchers() -> None:
    """Run the tests of launchers, with those of the matrix: every launcher at every size."""
    say("---- launchers ----")
    sys.exit(run(command("launchers"), timeout=LIMIT, capture=False).returncode)


def command(name: str) -> list[str]:
    """What runs a suite. For tests that need images these are built first: no two tests build at once."""
    pytest = (sys.executable, "-m", "pytest")
    if name == "unit":
        return [*pytest, str(ROOT / "tests" / "unit")]
    run_name = testrun.name()
    cluster = Cluster(Settings(name=run_name), say)
    plan = cluster.plan()
    cluster.build(plan)
    if name in CLUSTER_TESTS:
        folder, *options = CLUSTER_TESTS[name]
        return [*pytest, str(ROOT / folder), *options]
    return [
        *("docker", "run", "--rm", "--name", f"{run_name}-training", "--init", "--network", "none"),
        *("--shm-size", "512m"),
        *("--user", f"{os.getuid() or 1000}", "--volume", f"{ROOT}:/src:ro", "--workdir", "/src"),
        *(word for variable in INSTRUCTION_SETS for word in ("--env", variable)),
        *(
            "--env",
            "PYTHONDONTWRITEBYTECODE=1",
            "--env",
            "HOME=/tmp",
            "--env",
            "OMP_NUM_THREADS=1",
            images.image("node", plan.choices),
        ),
        *("python3", "-m", "pytest", "-p", "no:cacheprovider", "tests/training"),
    ]
