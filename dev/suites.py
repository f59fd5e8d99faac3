"""`make test`: lint and unit tests here, training tests in the node image, cluster tests on their own clusters."""

import os
import sys

import click

from dev import node_image, testrun
from slurmbed.cli.console import say
from slurmbed.cluster.settings import VERSIONS
from slurmbed.process import run
from slurmbed.project import ROOT

SUITES = {
    "unit": ("unit",),
    "training": ("training", "mutations"),
    "cluster": ("cluster",),
    "smoke": ("unit", "smoke"),  # in two minutes, once there are images
}
ALL = ("unit", "training", "mutations", "cluster")
LIMIT = 4800  # seconds for one suite
# A worker takes a file at a time. Most tests wait most of the time, so there are more workers than cores.
SIDE_BY_SIDE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "15")
# The tests that say most of a version of Slurm: jobs, accounting, faults, GPUs, containers, each launcher.
CORE = (
    *("test_arrays", "test_around_jobs", "test_campus", "test_commands", "test_containers", "test_elastic_nodes"),
    *("test_gpu", "test_jobs", "test_launchers", "test_life", "test_measured", "test_mpi", "test_odd", "test_survive"),
)
# Marks are in pyproject.toml.
CLUSTER_TESTS = {
    "cluster": ("tests/cluster", *SIDE_BY_SIDE, "-m", "not matrix and not client"),
    "smoke": ("tests/cluster", "-m", "smoke"),
    "launchers": ("tests/cluster/launchers", *SIDE_BY_SIDE),
    "clients": ("tests/cluster/clients",),
    "versions": ("tests/cluster", *SIDE_BY_SIDE, "-m", "not matrix and not client", "-k", " or ".join(CORE)),
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


@click.command("test-clients")
def test_clients() -> None:
    """Run other projects' programs on a cluster: slurm-sdk, snakemake and others."""
    say("---- clients ----")
    sys.exit(run(command("clients"), timeout=LIMIT, capture=False).returncode)


@click.command("test-versions")
@click.option("--only", type=click.Choice(list(VERSIONS)), help="one version of Slurm [default: all but the default]")
def test_versions(only: str | None) -> None:
    """Run the core of the cluster tests with other versions of Slurm. The exit status is that of the first failure."""
    failed = 0
    for version in [only] if only else list(VERSIONS)[1:]:
        say(f"---- cluster tests, Slurm {version} ----")
        os.environ[testrun.SLURM] = version
        failed = failed or run(command("versions"), timeout=LIMIT, capture=False).returncode
    sys.exit(failed)


def command(name: str) -> list[str]:
    """What runs a suite. For tests that need images these are built first: no two tests build at once."""
    pytest = (sys.executable, "-m", "pytest")
    if name == "unit":
        return [*pytest, str(ROOT / "tests" / "unit")]
    if name == "mutations":
        return [sys.executable, "-m", "dev", "mutate", "--short"]
    image = node_image.built()
    if name in CLUSTER_TESTS:
        folder, *options = CLUSTER_TESTS[name]
        return [*pytest, str(ROOT / folder), *options]
    return node_image.pytest(image, ROOT, "training", "tests/training")
