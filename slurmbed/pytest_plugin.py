"""Fixtures for projects that launch jobs on Slurm: a real cluster for a test session. Installing slurmbed is enough.

    from slurmbed import assert_separate_nodes

    def test_my_job(slurm, slurm_shared):
        job = slurm.sbatch("#!/bin/bash\\nsrun hostname", "--nodes=2", f"--output={slurm_shared}/out.log")
        job.wait()
        assert_separate_nodes(job)

A project replaces a fixture by defining one with the same name. `pytest --fixtures -p slurmbed.pytest_plugin` shows
them.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # tests that use no fixture do not pay for the import
    from slurmbed import BatchJob, Cluster, Faults, Node, Settings, Slurm
    from slurmbed.slurm.rest import Rest

CLUSTERS = pytest.StashKey["list[Cluster]"]()
"""Running clusters, in the order in which they started."""
EXPORTED = pytest.StashKey[tuple[BaseException, str]]()
"""The last failure whose logs were written, and their folder. If a session's fixture fails, each test that uses it
reports the same failure.
"""
OPTIONS = {
    "nodes": "number of nodes [default: 2, or as in --slurm-config]",
    "gpus": "GPUs per node, as for `slurmbed up --gpus`",
    "version": "version of Slurm",
    "flavor": "what the nodes have installed, as for `slurmbed up --flavor` [default: slim for a new cluster]",
    "config": "configuration file of the cluster, as for `slurmbed up --config`",
    "name": "name of the cluster; an existing one is used and kept [default: one for this project and xdist worker]",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slurmbed", "a real Slurm cluster (slurmbed)")
    for name, text in OPTIONS.items():
        group.addoption(f"--slurm-{name}", default=None, help=text)
    group.addoption("--slurm-keep", action="store_true", help="keep the cluster; the next run uses it again")
    group.addoption(
        "--slurm-missing",
        choices=("fail", "skip"),
        default="fail",
        help="what tests do if no Docker engine answers [default: fail]",
    )


@pytest.fixture(scope="session")
def slurm_name(pytestconfig: pytest.Config) -> str:
    """The cluster's name: no two projects, and no two workers of pytest-xdist, share a cluster.

    It has the name of the project's folder and a few digits from its path, because folders may have the same name.
    """
    if given := pytestconfig.getoption("--slurm-name"):
        return given
    folder = pytestconfig.rootpath
    project = re.sub(r"[^a-z0-9_-]+", "-", folder.name.lower()).strip("-_")[:20] or "project"
    path = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:6]
    return "-".join(filter(None, ("pytest", project, path, os.environ.get("PYTEST_XDIST_WORKER"))))


@pytest.fixture(scope="session")
def slurm_settings(request: pytest.FixtureRequest, pytestconfig: pytest.Config, slurm_name: str) -> "Settings":
    """Settings of the cluster: the options, and the project's folder as /workspace and under its own path.

    It has slurmrestd if a test of the session uses slurm_rest.
    """
    from slurmbed.cluster.settings import checked

    keys = {"nodes": "nodes", "gpus": "gpus", "version": "slurm", "flavor": "flavor", "config": "config"}
    asked = {key: pytestconfig.getoption(f"--slurm-{option}") for option, key in keys.items()}
    given = {key: value for key, value in asked.items() if value is not None}
    if any("slurm_rest" in getattr(item, "fixturenames", ()) for item in request.session.items):
        given["rest"] = True
    if pytestconfig.getoption("--slurm-name"):
        given["adopt"] = True  # another installation may have started it, as in action.yml
    return checked({"name": slurm_name, "workspace": pytestconfig.rootpath, **given})


@pytest.fixture(scope="session")
def slurm_cluster(pytestconfig: pytest.Config, slurm_settings: "Settings") -> Iterator["Cluster"]:
    """The cluster, ready; removed at the end of the session.

    It is kept with --slurm-keep, and if it existed before under the name of --slurm-name.
    """
    with running(pytestconfig, slurm_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_start(
    pytestconfig: pytest.Config, slurm_settings: "Settings"
) -> "Callable[..., AbstractContextManager[Cluster]]":
    """Starts one more cluster: `with slurm_start("pod", nodes=4, gpus="h100:8") as cluster:`; it is removed after that.

    Its name is that of slurm_cluster with the first argument; the other arguments are those of slurmbed.Settings. The
    defaults of slurm, flavor and workspace are those of slurm_settings. `say=` is called with each step.
    """
    from slurmbed.cluster.settings import checked

    worker = os.environ.get("PYTEST_XDIST_WORKER", "") if pytestconfig.getoption("--slurm-name") else ""
    same = {key: getattr(slurm_settings, key) for key in ("slurm", "flavor", "workspace")}

    def start(name: str, say: Callable[[str], None] = tell, **settings: object) -> "AbstractContextManager[Cluster]":
        name = "-".join(filter(None, (slurm_settings.name, name, worker)))
        return running(pytestconfig, checked({"name": name, **same, **settings}), say)

    return start


def tell(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def running(
    pytestconfig: pytest.Config, settings: "Settings", say: Callable[[str], None] = tell
) -> "Iterator[Cluster]":
    """A cluster, ready; removed afterwards, unless an option keeps it."""
    from slurmbed import Cluster, SlurmbedError

    cluster = Cluster(settings, say)
    try:
        cluster.require_engine()
    except SlurmbedError as error:
        if pytestconfig.getoption("--slurm-missing") == "skip":
            # asked for by that option; without it the test fails
            pytest.skip(f"no Slurm cluster: {error.reason}")
        raise
    if settings.flavor is None and not cluster.snapshot.containers:
        cluster.settings = settings.model_copy(update={"flavor": "slim"})
    is_theirs = bool(pytestconfig.getoption("--slurm-name") and cluster.snapshot.leftovers)
    clusters = pytestconfig.stash.setdefault(CLUSTERS, [])
    try:
        cluster.up()
        clusters.append(cluster)
        yield cluster
    except Exception as error:  # of a `with` in a test: its logs are wanted before it is removed
        if cluster in clusters and pytestconfig.stash.get(EXPORTED, (None, ""))[0] is not error:
            pytestconfig.stash[EXPORTED] = (error, export_logs(cluster))
        raise
    finally:
        if cluster in clusters:
            clusters.remove(cluster)
        if not (is_theirs or pytestconfig.getoption("--slurm-keep")):
            cluster.clean()


@pytest.fixture(scope="session")
def slurm(slurm_cluster: "Cluster") -> "Slurm":
    """Slurm's commands on the cluster, as an ordinary user: submit, wait, job, nodes, accounting, cancel."""
    return slurm_cluster.slurm


@pytest.fixture
def slurm_submit(slurm: "Slurm") -> "Iterator[Callable[..., BatchJob]]":
    """`job = slurm_submit("--nodes=2", "--wrap", "srun hostname")`: like sbatch; cancelled after the test."""
    from slurmbed import BatchJob

    jobs: list[BatchJob] = []

    def submit(*arguments: str) -> BatchJob:
        jobs.append(BatchJob(slurm, slurm.submit(*arguments)))
        return jobs[-1]

    yield submit
    left = [job for job in jobs if not job.record.is_over]
    for job in left:
        job.cancel()
    for job in left:
        job.wait_until_over()


@pytest.fixture
def slurm_nodes(slurm: "Slurm") -> "list[Node]":
    """The node records, as they are when the test begins."""
    return slurm.nodes()


@pytest.fixture(scope="session")
def slurm_user(slurm_cluster: "Cluster") -> str:
    """The user that jobs run as. Files that jobs write belong to the user who started pytest."""
    return slurm_cluster.user


@pytest.fixture
def slurm_shared(slurm_cluster: "Cluster", request: pytest.FixtureRequest) -> Path:
    """A new folder that the test and all nodes see under the same path, and jobs can write to."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:40]
    folder = next(iter(slurm_cluster.choices().shared)) / ".slurmbed"
    script = 'mkdir -p "$1" && printf "*\\n" >"$1/.gitignore" && mktemp -d "$1/$2-XXXXXX"'
    made = slurm_cluster.slurm.runner(["sh", "-c", script, "sh", str(folder), test]).check()
    return Path(made.stdout.strip())


@pytest.fixture(scope="session")
def slurm_project(slurm_cluster: "Cluster", pytestconfig: pytest.Config) -> str:
    """The project under test, installed on all nodes for the user, without its dependencies. The name of its wheel."""
    from slurmbed.cluster.packages import load

    return load(slurm_cluster, pytestconfig.rootpath, dependencies=False)


@pytest.fixture
def slurm_rest(slurm_cluster: "Cluster") -> "Rest":
    """Slurm's REST interface as an ordinary user: submit, wait, job, jobs, nodes, cancel, accounting, request."""
    from slurmbed.cluster.access import rest

    return rest(slurm_cluster)


@pytest.fixture
def slurm_faults(slurm_cluster: "Cluster", request: pytest.FixtureRequest) -> Iterator["Faults"]:
    """Kill, stop, restart, pause or cut off a node or a daemon; everything is healed after the test."""
    from slurmbed import Faults

    if "slurm_submit" in request.fixturenames:
        request.getfixturevalue("slurm_submit")  # which ends later than this, when slurmctld can cancel jobs again
    with Faults(slurm_cluster) as faults:
        yield faults


@pytest.fixture(scope="session")
def slurm_ssh(slurm_cluster: "Cluster", slurm_user: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The beginning of an ssh command to the login node: subprocess.run([*slurm_ssh, "squeue"])."""
    from slurmbed.cluster.access import ssh_config

    file = tmp_path_factory.mktemp("ssh") / "config"
    file.write_text(ssh_config(slurm_cluster, slurm_user))
    return ["ssh", "-F", str(file), "-o", "BatchMode=yes", slurm_cluster.name]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """If a test that uses the cluster fails, or its set-up, write what `slurmbed export-logs` writes."""
    report = (yield).get_result()
    if not (report.failed and report.when != "teardown" and call.excinfo):
        return
    error, stash, running = call.excinfo.value, item.config.stash, item.config.stash.get(CLUSTERS, [])
    uses_one = {"slurm_cluster", "slurm_start"} & {*getattr(item, "fixturenames", ())}
    if running and uses_one and stash.get(EXPORTED, (None, ""))[0] is not error:
        # where the set-up failed before the test had its cluster: of the last one that was started
        stash[EXPORTED] = (error, export_logs(getattr(item, "funcargs", {}).get("slurm_cluster", running[-1])))
    of, said = stash.get(EXPORTED, (None, ""))
    if error is of:
        report.sections.append(("slurmbed", said))


def export_logs(cluster: "Cluster") -> str:
    """Write the logs to a new folder. Returns a line that names it."""
    folder = Path(tempfile.mkdtemp(prefix="slurmbed-logs-"))
    try:
        cluster.export_logs(folder)
    except Exception as error:  # the test's own failure is what matters
        return f"no logs could be exported: {error}"
    return f"logs of daemons and jobs, and Slurm's state: {folder}"
