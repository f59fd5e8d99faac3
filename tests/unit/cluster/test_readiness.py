"""scripts/wait-ready, on recorded states of nodes, and what the host makes of its lines."""

import importlib.machinery
import importlib.util
import json
from contextlib import nullcontext

import pytest

from slurmbed.cluster.readiness import check_containers, stages, wait_ready
from slurmbed.engine.snapshot import Container
from slurmbed.errors import CommandError, NotReady, WaitTimeout
from slurmbed.process import Result
from slurmbed.project import ROOT
from slurmbed.slurm.node_states import NODE_STATES


@pytest.fixture
def script(monkeypatch):
    """The script as a module, with commands that answer from ``answers``."""
    loader = importlib.machinery.SourceFileLoader("wait_ready", str(ROOT / "scripts" / "wait-ready"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("wait_ready", loader))
    loader.exec_module(module)
    module.asked = []

    def answer(*argv: str) -> str:
        module.asked.append(argv)
        return module.answers[argv[0]]

    monkeypatch.setattr(module, "answer", answer)
    return module


def nodes(*states: str, started: int = 1795339964) -> dict[str, str]:
    """What scontrol answers for nodes in these states, whose slurmd came at ``started``."""
    common = {
        "partitions": ["main"],
        "reason": "bad memory",
        "slurmd_start_time": {"set": True, "infinite": False, "number": started},
    }
    records = [{"name": f"node-{i}", "state": state.split("+"), **common} for i, state in enumerate(states, 1)]
    return {"scontrol": json.dumps({"nodes": records})}


USUAL = "CLOUD+DYNAMIC_NORM"


@pytest.mark.parametrize(
    "busy", ["MIXED", "ALLOCATED+COMPLETING", "IDLE+PLANNED", "IDLE+MAINTENANCE+RESERVED", "MIXED+REBOOT_REQUESTED"]
)
def test_idle_nodes_are_those_that_run_the_job_and_busy_ones_work(script, busy):
    script.answers = nodes(f"IDLE+{USUAL}", f"{busy}+{USUAL}", f"IDLE+{USUAL}")
    assert script.idle_nodes(3, NODE_STATES) == {"main": ["node-1", "node-3"]}


def test_a_node_beyond_those_that_are_asked_for_is_not_waited_for(script):
    script.answers = nodes(f"IDLE+{USUAL}", f"DOWN+{USUAL}")
    assert script.idle_nodes(1, NODE_STATES) == {"main": ["node-1"]}


@pytest.mark.parametrize(
    "state", ["DOWN+CLOUD", f"IDLE+{USUAL}+NOT_RESPONDING", "IDLE+CLOUD+POWERED_DOWN", "IDLE+NEW_IN_SLURM"]
)
def test_a_node_that_does_not_work_is_named_with_its_state(script, state):
    script.answers = nodes(f"IDLE+{USUAL}", state)
    with pytest.raises(script.Pending) as pending:
        script.idle_nodes(2, NODE_STATES)
    assert str(pending.value) == f"node-2 {state}"


@pytest.mark.parametrize("state", [f"IDLE+{USUAL}+DRAIN", "MIXED+DRAIN+COMPLETING", "IDLE+INVALID_REG", "DOWN+FAIL"])
def test_a_node_that_will_never_work_is_said_at_once_with_the_reason(script, state):
    script.answers = nodes("DOWN", state)
    with pytest.raises(script.InVain) as never:
        script.idle_nodes(2, NODE_STATES)
    assert str(never.value) == f"node-2 {state} (bad memory)"


def test_an_idle_node_that_slurmctld_only_remembers_does_not_work(script):
    script.answers = nodes(f"IDLE+{USUAL}", started=0)
    with pytest.raises(script.Pending, match="node-1 has no slurmd yet"):
        script.idle_nodes(1, NODE_STATES)


def test_a_node_that_has_not_come_is_named(script):
    script.answers = nodes(f"IDLE+{USUAL}")
    with pytest.raises(script.Pending, match="not registered: node-2, node-3"):
        script.idle_nodes(3, NODE_STATES)


def test_a_job_on_fewer_nodes_than_asked_for_is_in_vain(script):
    script.answers = {"srun": "7\n"}
    with pytest.raises(script.InVain, match="srun on 2 nodes ran 1 tasks"):
        script.run_job("main", ["node-1", "node-2"], "")


@pytest.mark.parametrize(
    ("rows", "done"), [("COMPLETED\nCOMPLETED\n", True), ("COMPLETED\nRUNNING\n", False), ("", False)]
)
def test_accounting_has_the_job_once_all_its_rows_are_completed(script, rows, done):
    script.answers = {"sacct": rows}
    if done:
        script.accounted(["7"])
    else:
        with pytest.raises(script.Pending, match="accounting of job 7"):
            script.accounted(["7"])


def test_what_is_awaited_is_told_and_stages_are_reported():
    reached: list[str] = []
    lines = ['{"reached": "user"}', '{"waiting": "not registered: node-2"}', '{"reached": "nodes"}', "no such user"]
    lines += ['{"nodes": []}', '{"never": "node-1 DRAIN"}']
    told = ["not registered: node-2", "no such user", '{"nodes": []}', "node-1 DRAIN"]
    assert list(stages(iter(lines), reached.append)) == told
    assert reached == ["user", "nodes"]


@pytest.mark.parametrize("state", ["exited", "dead", "restarting"])
def test_a_container_that_has_ended_is_said_at_once(state):
    ended = Container("c-db-1", "c", "db", state, "Exited (1) 2 seconds ago", "sha256:1", {}, {})
    with pytest.raises(NotReady, match=r"db: Exited \(1\)"):
        check_containers([ended])


class WhereLoginEnds:
    """An engine that finds the login node about to start again."""

    def watched(self, project, died):
        return nullcontext()

    def containers(self):
        return []

    def start(self, container, argv, *, timeout):
        raise CommandError(f"docker exec {container}: Container 942e is restarting")


def test_a_login_node_that_ends_before_it_is_asked_is_no_error_of_a_command():
    with pytest.raises(NotReady, match="ended while the cluster started: login"):
        wait_ready(WhereLoginEnds(), "c", "alice", 2)


class EndsWithLogin(WhereLoginEnds):
    """What waits in the login node is killed with it, or cannot start any more, before the engine tells of that."""

    def __init__(self, status):
        self.status = status

    def start(self, container, argv, *, timeout):
        return self

    def lines(self):
        return iter(())

    def result(self):
        return Result(("wait-ready",), self.status, "", "OCI runtime exec failed")


@pytest.mark.parametrize("status", [137, 126, None])
def test_a_login_node_that_ends_while_it_is_asked_is_not_said_to_be_late(status):
    with pytest.raises(NotReady, match="ended while the cluster started: login"):
        wait_ready(EndsWithLogin(status), "c", "alice", 2)


def test_what_is_not_ready_in_time_is_late():
    with pytest.raises(WaitTimeout, match="not ready after 124 s; last status: none"):
        wait_ready(EndsWithLogin(1), "c", "alice", 2)
