"""`make test`: lint and unit tests here, training tests in the node image, cluster tests on their own clusters."""

import os
import sys
from collections.abc import Callable

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import Settings
from slurmbed.engine.compose import ROOT
from slurmbed.errors import UsageError
from slurmbed.process import run

SUITES = ("unit", "training", "cluster")
LIMIT = 4800  # seconds for one suite
# What torch and oneDNN use of a CPU, if set where `make test` runs: the lowest are ATEN_CPU_CAPABILITY=default and
# ONEDNN_MAX_CPU_ISA=SSE41.
INSTRUCTION_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile")  # one file's jobs work while another's wait


def test(only: str, say: Callable[[str], None]) -> int:
    """Run all suites, or ``only`` one; the exit status is the first failure's.

    Raises:
        UsageError: no such suite.
    """
    if only and only not in SUITES:
        raise UsageError(f"ONLY={only}: no such tests", f"choose one of {', '.join(SUITES)}")
    failed = 0
    for name in [only] if only else SUITES:
        say(f"---- {name} tests ----")
        code = run(command(name, say), timeout=LIMIT, capture=False).returncode
        failed = failed or code
    return failed


def test_launchers(say: Callable[[str], None]) -> int:
    """Run the tests of launchers alone, which are among the cluster tests."""
    say("---- launchers ----")
    return run(command("cluster/launchers", say), timeout=LIMIT, capture=False).returncode


def command(name: str, say: Callable[[str], None]) -> list[str]:
    """What runs the tests of a folder. For those that need images these are built first: no two tests build at once."""
    here = [sys.executable, "-m", "pytest", str(ROOT / "tests" / name)]
    if name == "unit":
        return here
    cluster = Cluster(Settings(name="slurmbed-test"), say)
    plan = cluster.plan()
    cluster.build(plan)
    if name.startswith("cluster"):
        return [*here, *SIDE_BY_SIDE]
    return [
        *("docker", "run", "--rm", "--name", "slurmbed-test-training", "--init", "--network", "none"),
        *("--shm-size", "512m"),
        *("--user", f"{os.getuid() or 1000}", "--volume", f"{ROOT}:/src:ro", "--workdir", "/src"),
        *(word for variable in INSTRUCTION_SETS for word in ("--env", variable)),
        *("--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "HOME=/tmp", "--env", "OMP_NUM_THREADS=1", plan.node_image),
        *("python3", "-m", "pytest", "-p", "no:cacheprovider", "tests/training"),
    ]
