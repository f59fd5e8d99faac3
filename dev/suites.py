"""`make test`: lint and unit tests here, training tests in the node image, cluster tests on their own clusters."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from dev import node_image, testrun
from slurmbed.cli.console import say
from slurmbed.cluster.settings import VERSIONS
from slurmbed.process import run
from slurmbed.project import ROOT

SUITES = {
    "unit": ("unit",),
    "training": ("training", "mutations"),
    "containers": ("containers",),  # unit tests that need bubblewrap and squashfs-tools
    "cluster": ("cluster",),
    "newest": ("newest",),
    "smoke": ("unit", "smoke"),  # in two minutes, once there are images
}
ALL = ("unit", "containers", "training", "mutations", "newest", "cluster")
# What all clusters of a suite have, other than the defaults.
CHOSEN = {"newest": {testrun.SLURM: list(VERSIONS)[-1], testrun.FLAVOR: "slim"}}
LIMIT = 4800  # seconds for one suite
TESTS_FAILED = 1  # pytest's exit status
FEW = 5  # tests that are run again if they fail; more are no chance
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TWO_FILES = ("-n", "2", "--dist", "loadfile")  # at a time: these tests compute
# A worker takes a file at a time. Most tests wait most of the time, so there are more workers than cores.
SIDE_BY_SIDE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "15")
# The tests that say most of a version of Slurm: jobs, accounting, faults, GPUs, containers, each launcher.
CORE = (
    *("test_arrays", "test_around_jobs", "test_campus", "test_commands", "test_container_programs", "test_containers"),
    *("test_elastic_nodes", "test_gpu", "test_job_containers", "test_jobs", "test_launchers", "test_life"),
    *("test_measured", "test_mpi", "test_odd", "test_own_cpus", "test_rest", "test_survive"),
)
# Other files that have cases of the matrix.
OTHERS = ("mnist", "survive", "training_in_containers")
WITH_MATRIX = [str(ROOT / "tests" / "cluster" / f"test_{name}.py") for name in OTHERS]
# Marks are in pyproject.toml.
CLUSTER_TESTS = {
    "cluster": ("tests/cluster", *SIDE_BY_SIDE, "-m", "not matrix and not client"),
    "newest": ("tests/cluster", "-m", "newest"),
    "smoke": ("tests/cluster", "-m", "smoke"),
    "launchers": ("tests/cluster/launchers", *WITH_MATRIX, *SIDE_BY_SIDE),
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
        with variables(CHOSEN.get(name, {})):
            words = command(name)
            code = run(words, timeout=LIMIT, capture=False).returncode
            if code == TESTS_FAILED and name in ("newest", "cluster"):
                code = alone(words)
        failed = failed or code
    sys.exit(failed)


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """With these variables in the environment."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def alone(words: Sequence[str]) -> int:
    """Run the files of the few tests that failed once more, one after another; returns pytest's exit status.

    With four clusters on two busy cores, a wait can end too soon. That says nothing of what is tested. Tests that pass
    alone are named: each is a defect of the test.
    """
    failed = list(json.loads(LAST_FAILED.read_text()))
    if len(failed) > FEW:
        return TESTS_FAILED
    say(f"---- once more, alone: {len(failed)} that failed ----")
    root, folder = LAST_FAILED.parents[3], words[3]
    files = sorted({str(root / name.partition("::")[0]) for name in failed})
    again = [word for word in words if word not in (folder, *SIDE_BY_SIDE)]
    code = run([*again, *files], timeout=LIMIT, capture=False).returncode
    if code == 0:
        say("failed beside others, passed alone: " + ", ".join(failed))
    return code


@click.command("test-launchers")
def test_launchers() -> None:
    """Run the tests with cases of the matrix: each launcher at each size, interrupted trainings, an epoch of MNIST."""
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
    """Run the training tests and the core of the cluster tests with other versions of Slurm, and of torch.

    The exit status is that of the first failure.
    """
    failed = 0
    for version in [only] if only else list(VERSIONS)[1:]:
        for name in ("training", "versions"):
            say(f"---- {name} tests, Slurm {version} ----")
            with variables({testrun.SLURM: version}):
                code = run(command(name), timeout=LIMIT, capture=False).returncode
            failed = failed or code
    sys.exit(failed)


def command(name: str) -> list[str]:
    """What runs a suite. For tests that need images these are built first: no two tests build at once."""
    pytest = (sys.executable, "-m", "pytest")
    if name == "unit":
        return [*pytest, str(ROOT / "tests" / "unit"), *TWO_FILES]
    if name == "mutations":
        return [sys.executable, "-m", "dev", "mutate", "--short"]
    image = node_image.built()
    if name in CLUSTER_TESTS:
        folder, *options = CLUSTER_TESTS[name]
        return [*pytest, str(ROOT / folder), *options]
    if name == "containers":
        return node_image.pytest(image, ROOT, name, "tests/unit/containers", options=node_image.with_containers())
    return node_image.pytest(image, ROOT, "training", "tests/training", *TWO_FILES)
