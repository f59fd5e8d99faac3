"""The pytest plugin, as far as it goes without an engine."""

import re
from pathlib import Path

import pytest

from slurmbed import pytest_plugin
from slurmbed.project import ROOT

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with one test that says what the cluster would be made with."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    folder = pytester.mkdir("My Project")  # pytester's own folder is the home, of which no cluster is given all
    test = "def test(slurm_settings): print('made', slurm_settings.model_dump_json(exclude_defaults=True))"
    (folder / "test_it.py").write_text(test)
    plugin = ("-p", "slurmbed.pytest_plugin", "-s", f"--rootdir={folder}", folder)
    return lambda *words: pytester.runpytest_subprocess(*plugin, *words)


def test_the_cluster_is_named_after_the_project_and_has_its_folder(project, pytester):
    said = project()
    said.assert_outcomes(passed=1)
    folder = pytester.path / "My Project"
    said.stdout.fnmatch_lines([f'*made *"name":"pytest-my-project-??????","workspace":"{folder}"*'])


def test_two_projects_whose_folders_have_one_name_have_two_clusters(project, pytester, tmp_path):
    name = r'"name":"(pytest-my-project-[0-9a-f]{6})"'
    other = tmp_path / "My Project"
    other.mkdir()
    found = [re.search(name, project(*words).stdout.str())[1] for words in ((), (f"--rootdir={other}",), ())]
    assert found[0] == found[2] != found[1]


def test_two_workers_have_two_clusters(project, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    project().stdout.fnmatch_lines(['*"name":"pytest-*-gw1"*'])


def test_options_are_settings(project):
    words = ("--slurm-nodes=3", "--slurm-gpus=h100:2", "--slurm-version=26.05", "--slurm-flavor=full")
    said = project("--slurm-name=mine", *words)
    said.stdout.fnmatch_lines(['*"name":"mine","nodes":3,"gpus":"h100:2","slurm":"26.05","flavor":"full"*'])


def test_a_test_that_uses_the_rest_interface_gets_it(project, pytester):
    test = "def test_rest(request):\n    if False: request.getfixturevalue('slurm_rest')\n"
    (pytester.path / "My Project" / "test_rest.py").write_text(test)
    assert '"rest"' not in project().stdout.str()
    (pytester.path / "My Project" / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef slurm_rest(): return None"
    )
    (pytester.path / "My Project" / "test_rest.py").write_text("def test_rest(slurm_rest): pass")
    project().stdout.fnmatch_lines(['*"rest":true*'])


def test_a_bad_option_is_said_in_words(project):
    said = project("--slurm-nodes=many")
    said.assert_outcomes(errors=1)
    said.stdout.fnmatch_lines(["*NODES=many: not a whole number*"])


def test_every_fixture_and_option_has_its_help(project):
    shown = project("--fixtures").stdout.str()
    names = re.findall(r"^def (slurm\w*)\(", Path(pytest_plugin.__file__).read_text(), re.MULTILINE)
    assert len(names) > 10
    page = (ROOT / "docs" / "pytest.md").read_text()
    for name in names:
        after = shown.split(f"\n{name} ")[1]
        assert "no docstring" not in after.splitlines()[1]
        assert f"`{name}`" in page
    assert "--slurm-keep" in project("--help").stdout.str()


FAILING = """
import pytest

class Cluster:
    def export_logs(self, folder):
        (folder / "some.log").touch()

@pytest.fixture(scope="session")
def slurm_cluster(pytestconfig):
    from slurmbed.pytest_plugin import CLUSTERS
    cluster = Cluster()
    pytestconfig.stash[CLUSTERS] = [cluster]
    yield cluster
    assert 0, "the end is no test's fault"

@pytest.fixture(scope="session")
def broken(slurm_cluster):
    assert 0, "not set up"

def test_one(broken): pass
def test_two(broken): pass
def test_three(slurm_cluster): assert 0
def test_four(): assert 0
def test_five(slurm_cluster): pass
"""


def test_a_failed_set_up_leaves_one_bundle_for_all_its_tests_and_a_failed_test_its_own(project, pytester, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("bundles")))
    (pytester.path / "My Project" / "test_it.py").write_text(FAILING)
    said = project()
    said.assert_outcomes(passed=1, failed=2, errors=3)
    told = re.findall(r"^logs of daemons and jobs, and Slurm's state: (.*)", said.stdout.str(), re.MULTILINE)
    assert told[0] == told[1] != told[2]
    assert len(told) == 3
    assert {str(each.parent) for each in (pytester.path / "bundles").glob("*/some.log")} == set(told)


OTHERS = """
import pytest
from slurmbed import Cluster

@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    for step in ("require_engine", "up", "clean"):
        said = lambda self, step=step: print(step, self.settings.model_dump_json(exclude_none=True))
        monkeypatch.setattr(Cluster, step, said)
    monkeypatch.setattr(Cluster, "snapshot", type("Snapshot", (), {"containers": [], "leftovers": []}))

def test(slurm_start):
    with slurm_start("pod", nodes=4, gpus="h100:8"):
        print("here")
    with pytest.raises(Exception, match="NODES=many: not a whole number"):
        slurm_start("pod", nodes="many")
"""


def test_another_cluster_has_a_name_of_its_own_and_the_sessions_version(project, pytester):
    (pytester.path / "My Project" / "test_it.py").write_text(OTHERS)
    said = project("--slurm-version=26.05", "--slurm-flavor=torch")
    said.assert_outcomes(passed=1)
    pod = '"name":"pytest-my-project-*-pod","nodes":4,*"slurm":"26.05","flavor":"torch"'
    said.stdout.fnmatch_lines([f"*up *{pod}*", "here", f"clean *{pod}*"])


FAILS_INSIDE = """
def test_that_fails(slurm_start, monkeypatch):
    monkeypatch.setattr(Cluster, "export_logs", lambda self, folder: print("export", self.name))
    with slurm_start("outer"), slurm_start("inner"):
        assert 0
"""


def test_a_failure_leaves_the_logs_of_a_cluster_that_the_test_itself_started(project, pytester):
    (pytester.path / "My Project" / "test_it.py").write_text(OTHERS + FAILS_INSIDE)
    said = project("-k", "test_that_fails")
    said.assert_outcomes(failed=1, deselected=1)
    said.stdout.fnmatch_lines(["export *-inner", "clean *-inner*", "clean *-outer*", "logs of daemons and jobs*"])
    assert said.stdout.str().count("logs of daemons and jobs") == 1
    assert "-outer\n" not in said.stdout.str()


def test_kept_clusters_are_not_removed(project, pytester):
    (pytester.path / "My Project" / "test_it.py").write_text(OTHERS)
    said = project("--slurm-keep")
    said.assert_outcomes(passed=1)
    assert "clean" not in said.stdout.str()


def test_another_cluster_of_a_worker_is_its_own_also_where_all_share_the_first(project, pytester, monkeypatch):
    (pytester.path / "My Project" / "test_it.py").write_text(OTHERS)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    project("--slurm-name=theirs").stdout.fnmatch_lines(['up *"name":"theirs-pod-gw1"*'])
