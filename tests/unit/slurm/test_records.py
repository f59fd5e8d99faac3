"""Nodes, jobs and accounting, from recorded output of real clusters."""

import json

import pytest

from slurmbed.errors import PlacementError, SlurmbedError
from slurmbed.slurm.node_states import NODE_STATES
from slurmbed.slurm.records import Job, Node, Step, parse_accounting, parse_jobs, parse_nodes


def test_nodes_in_slurms_order(recorded):
    first, second = parse_nodes(recorded("nodes.json"))
    assert (first.name, second.name) == ("node-1", "node-2")
    assert (first.cpus, first.memory, first.gres, first.gpus) == (2, 800, "gpu:emulated:2", 2)
    assert (first.state, first.reason, first.partitions) == ("IDLE", "", ("main",))
    assert first.is_idle


def test_nodes_out_of_service_are_not_idle(recorded):
    working, drained, absent = parse_nodes(recorded("nodes-out-of-service.json"))
    assert working.is_idle
    assert (drained.state, drained.reason, drained.is_idle) == ("IDLE", "bad memory", False)
    assert "DRAIN" in drained.flags
    assert (absent.name, absent.gres, absent.gpus, absent.is_idle) == ("node-99", "", 0, False)
    assert "POWERED_DOWN" in absent.flags


# All that the data parsers of Slurm 24.11 and the sinfo of 26.05 name: a new one is to be thought about.
STATES = "UNKNOWN DOWN IDLE ALLOCATED ERROR MIXED FUTURE INVALID EXTERNAL UNDRAIN CLOUD RESUME DRAIN COMPLETING"
FLAGS = (
    "NOT_RESPONDING POWERED_DOWN FAIL POWERING_UP MAINTENANCE REBOOT_REQUESTED REBOOT_CANCELED POWERING_DOWN RESERVED"
    " DYNAMIC_FUTURE REBOOT_ISSUED PLANNED INVALID_REG POWER_DOWN POWER_UP POWER_DRAIN DYNAMIC_NORM BLOCKED PERFCTRS"
)


def test_every_state_and_flag_is_known():
    assert set(f"{STATES} {FLAGS}".split()) == set(NODE_STATES)


@pytest.mark.parametrize(
    ("state", "works", "is_idle"),
    [
        ("IDLE+DYNAMIC_NORM", True, True),
        ("IDLE+CLOUD+PLANNED", True, False),
        ("MIXED+MAINTENANCE+RESERVED", True, False),
        ("IDLE+CLOUD+NOT_RESPONDING", False, False),
        ("ALLOCATED+DRAIN", False, False),
        ("DOWN", False, False),
        ("IDLE+NEW_IN_SLURM", False, False),
    ],
)
def test_a_node_works_with_jobs_or_kept_for_some(state, works, is_idle):
    first, *flags = state.split("+")
    node = Node("node-1", 1, 1024, first, tuple(flags), "")
    assert (node.works, node.is_idle) == (works, is_idle)


@pytest.mark.parametrize(
    ("gres", "gpus"), [("", 0), ("gpu:2", 2), ("gpu:h100:8(S:0-1)", 8), ("gpu:a100:2,gpu:h100:4,shard:9", 6)]
)
def test_gpus_of_a_node(gres, gpus):
    assert Node("node-1", 1, 512, "IDLE", (), "", gres).gpus == gpus


def job(recorded, name: str) -> Job:
    (found,) = parse_jobs(recorded(f"job-{name}.json"))
    return found


@pytest.mark.parametrize(
    ("name", "state", "exit_code", "over"),
    [
        ("pending", "PENDING", "0:0", False),
        ("running", "RUNNING", "0:0", False),
        ("completed", "COMPLETED", "0:0", True),
        ("failed", "FAILED", "3:0", True),
        ("cancelled", "CANCELLED", "0:15", True),
    ],
)
def test_a_job(recorded, name, state, exit_code, over):
    found = job(recorded, name)
    assert (found.state, found.exit_code, found.is_over) == (state, exit_code, over)
    assert (found.name, found.stdout) == ("wrap", f"/home/alice/{found.id}.log")
    assert found.id == found.raw_id
    assert (found.array_job_id, found.array_task_id, found.het_job_id, found.het_offset) == (None,) * 4


def test_nodes_and_reason_of_a_job(recorded):
    assert (job(recorded, "pending").nodelist, job(recorded, "pending").reason) == ("", "JobHeldUser")
    assert (job(recorded, "completed").nodelist, job(recorded, "completed").reason) == ("node-[1-2]", "None")
    assert job(recorded, "failed").reason == "NonZeroExitCode"


def test_an_unknown_job_is_no_job(recorded):
    assert parse_jobs(recorded("job-unknown.json")) == []
    assert parse_accounting(recorded("sacct-unknown.json")) == []


def test_tasks_of_an_array_that_have_not_started_are_the_last_record(recorded):
    done, waiting = parse_jobs(recorded("job-array-running.json"))
    array = done.array_job_id
    assert (done.id, done.array_task_id, done.state) == (f"{array}_0", 0, "COMPLETED")
    assert (waiting.id, waiting.array_task_id, waiting.state) == (f"{array}_[1-2%1]", None, "PENDING")
    assert (waiting.array_job_id, waiting.raw_id) == (array, array)


def test_each_task_of_an_array_has_its_own_state(recorded):
    jobs = parse_jobs(recorded("job-array.json"))
    states = [(each.array_task_id, each.state, each.exit_code) for each in jobs]
    assert states == [(0, "COMPLETED", "0:0"), (1, "FAILED", "4:0")]
    rows = parse_accounting(recorded("sacct-array.json"))
    assert [(row.id, row.raw_id, row.state, row.exit_code, row.stdout) for row in rows] == [
        (each.id, each.raw_id, each.state, each.exit_code, each.stdout) for each in jobs
    ]


def test_components_of_a_heterogeneous_job(recorded):
    for found in (parse_jobs(recorded("job-het.json")), parse_accounting(recorded("sacct-het.json"))):
        first = int(found[0].raw_id)
        assert [(each.id, each.raw_id) for each in found] == [
            (f"{first}+0", f"{first}"),
            (f"{first}+1", f"{first + 1}"),
        ]
        assert [(each.het_job_id, each.het_offset) for each in found] == [(f"{first}", 0), (f"{first}", 1)]
        assert [each.nodelist for each in found] == ["node-1", "node-2"]


def test_which_ids_name_a_job(recorded):
    done, waiting = parse_jobs(recorded("job-array-running.json"))
    array, component = done.array_job_id, parse_jobs(recorded("job-het.json"))[1]
    assert [done.is_named(id) for id in (array, f"{array}_0", done.raw_id, f"{array}_1")] == [True, True, True, False]
    assert [waiting.is_named(f"{array}_{task}") for task in (0, 1, 2, 3)] == [False, True, True, False]
    het = component.het_job_id
    assert [component.is_named(id) for id in (het, f"{het}+1", f"{het}+0", "4_1")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("waiting", "task", "named"),
    [
        *(
            ("7_[0-10:2%4]", 4, True),
            ("7_[0-10:2%4]", 10, True),
            ("7_[0-10:2%4]", 5, False),
            ("7_[0-10:2%4]", 12, False),
        ),
        *(("7_[1,3-5]", 3, True), ("7_[1,3-5]", 2, False), ("7_[1,3,5,...]", 99, True)),
    ],
)
def test_which_tasks_have_not_started(waiting, task, named):
    rest = Job(
        id=waiting, raw_id="7", name="", state="", reason="", exit_code="", nodelist="", stdout="", array_job_id="7"
    )
    assert rest.is_named(f"7_{task}") is named


@pytest.mark.parametrize(
    ("states", "state", "over"),
    [
        (["COMPLETED", "COMPLETING"], "COMPLETING", False),
        (["CANCELLED", "COMPLETING"], "COMPLETING", False),
        (["RUNNING", "CONFIGURING"], "CONFIGURING", False),
        (["PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"], "REQUEUE_HOLD", False),
        (["FAILED", "LAUNCH_FAILED"], "FAILED", True),
        (["NODE_FAIL"], "NODE_FAIL", True),
        (["OUT_OF_MEMORY"], "OUT_OF_MEMORY", True),
    ],
)
def test_a_job_that_still_changes_is_not_over(recorded, states, state, over):
    content = json.loads(recorded("job-running.json"))
    content["jobs"][0]["job_state"] = states
    (found,) = parse_jobs(json.dumps(content))
    assert (found.state, found.is_over) == (state, over)


def test_accounting_of_a_job_with_its_steps(recorded):
    (row,) = parse_accounting(recorded("sacct-completed.json"))
    assert (row.user, row.state, row.nodes, row.nodelist) == ("alice", "COMPLETED", 2, "node-[1-2]")
    assert 0 <= row.elapsed < 60
    assert [(step.id, step.name, step.tasks, step.nodes) for step in row.steps] == [
        ("batch", "batch", 1, ("node-1",)),
        ("0", "true", 3, ("node-1", "node-2")),
        ("1", "true", 3, ("node-1", "node-2")),
    ]
    _, blocks, cyclic = row.steps
    assert blocks.layout() == ["node-1", "node-1", "node-2"]
    assert cyclic.layout() == ["node-1", "node-2", "node-1"]


def test_a_step_of_another_distribution_has_no_layout():
    step = Step("0", "a", "COMPLETED", "0:0", ("node-1", "node-2"), 4, "Plane", 1)
    with pytest.raises(PlacementError, match="distribution Plane"):
        step.layout()


def test_accounting_has_every_run_of_a_requeued_job(recorded):
    first, second = parse_accounting(recorded("sacct-requeued.json"))
    assert first.id == second.id
    states = [(row.state, row.is_over, row.nodelist) for row in (first, second)]
    assert states == [("REQUEUED", False, "node-1"), ("PENDING", False, "")]
    assert [step.state for step in first.steps] == ["CANCELLED", "CANCELLED"]


def test_accounting_of_jobs_that_did_not_complete(recorded):
    (failed,), (cancelled,) = (parse_accounting(recorded(f"sacct-{name}.json")) for name in ("failed", "cancelled"))
    assert (failed.state, failed.exit_code, failed.is_over) == ("FAILED", "3:0", True)
    assert (cancelled.state, cancelled.steps[0].exit_code) == ("CANCELLED", "0:15")


@pytest.mark.parametrize(
    ("name", "parse", "records", "field"),
    [
        ("nodes.json", parse_nodes, "nodes", "real_memory"),
        ("job-running.json", parse_jobs, "jobs", "job_state"),
        ("job-running.json", parse_jobs, "jobs", "array_job_id"),
        ("sacct-completed.json", parse_accounting, "jobs", "stdout_expanded"),
        ("sacct-completed.json", parse_accounting, "jobs", "state"),
    ],
)
def test_a_missing_field_is_named_with_its_command(recorded, name, parse, records, field):
    content = json.loads(recorded(name))
    del content[records][0][field]
    with pytest.raises(SlurmbedError, match=rf"(scontrol|sacct) --json.*: field {field}\S* is missing"):
        parse(json.dumps(content))
    with pytest.raises(SlurmbedError, match=f"field {records} is missing"):
        parse("{}")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("cpus", "two", "field cpus is 'two', not a whole number"),
        ("cpus", {"set": False, "infinite": False, "number": 0}, "field cpus is not set"),
        ("cpus", {"number": 2}, "field cpus is .*, not a number"),
        ("state", "IDLE", "field state is 'IDLE', not a list of texts"),
        ("state", [], "field state is empty"),
        ("name", 1, "field name is 1, not a text"),
    ],
)
def test_a_field_of_another_type_is_named(recorded, field, value, problem):
    content = json.loads(recorded("nodes.json"))
    content["nodes"][0][field] = value
    with pytest.raises(SlurmbedError, match=problem):
        parse_nodes(json.dumps(content))


@pytest.mark.parametrize("text", ["", "slurm_load_node error: Unable to contact slurm controller"])
def test_output_that_is_no_json(text):
    with pytest.raises(SlurmbedError, match="the output of scontrol --json show nodes is not JSON"):
        parse_nodes(text)
