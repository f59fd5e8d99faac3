"""Parsers, on text recorded from a real cluster of Slurm 24.11."""

from pathlib import Path

import pytest

from slurmbed.slurm import parse

RECORDED = Path(__file__).parents[2] / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def test_nodes_keep_slurms_order_and_slices():
    nodes = parse.parse_nodes(recorded("nodes.txt"))
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3", "node-4", "node-5"]
    assert {(node.cpus, node.state) for node in nodes} == {(1, "IDLE")}
    assert [node.memory for node in nodes] == [4519, 4519, 3615, 3615, 3615]
    assert all(node.is_idle for node in nodes)


@pytest.mark.parametrize(("field", "gres"), [("(null)", ""), ("gpu:emulated:2", "gpu:emulated:2")])
def test_a_nodes_gres(field, gres):
    assert parse.parse_nodes(f"NodeName=node-1 CPUTot=1 Gres={field} RealMemory=512 State=IDLE")[0].gres == gres


@pytest.mark.parametrize("state", ["IDLE+CLOUD+POWERED_DOWN", "IDLE*+CLOUD", "IDLE+CLOUD*", "DOWN+CLOUD", "IDLE+DRAIN"])
def test_a_node_that_does_not_answer_is_not_idle(state):
    (node,) = parse.parse_nodes(f"NodeName=node-1 CPUTot=1 RealMemory=512 State={state} Reason=Not responding [root@x]")
    assert not node.is_idle
    assert node.reason == "Not responding [root@x]"


def test_job():
    job = parse.parse_job(recorded("job.txt"))
    assert (job.id, job.name, job.state, job.nodelist) == ("7", "wrap", "RUNNING", "node-[1-3]")
    assert (job.exit_code, job.stdout, job.is_over) == ("0:0", "/workspace/runs/7.log", False)


@pytest.mark.parametrize(
    ("state", "over"),
    [("PENDING", False), ("COMPLETING", False), ("COMPLETED", True), ("NODE_FAIL", True), ("OUT_OF_MEMORY", True)],
)
def test_which_states_are_the_end_of_a_job(state, over):
    line = f"JobId=3 JobName=a JobState={state} Reason=None ExitCode=1:0 NodeList=(null) StdOut=/x"
    assert parse.parse_job(line).is_over is over
    assert parse.parse_job(line).nodelist == ""


def test_accounting_rows_of_a_requeued_job():
    rows = parse.parse_table(recorded("sacct.txt"))
    assert [row["State"] for row in rows] == ["NODE_FAIL", "CANCELLED", "COMPLETED", "CANCELLED", "PENDING"]
    assert rows[2]["NodeList"] == "node-[1-4]"
    assert parse.parse_table("") == []


def test_the_last_value_of_a_row_may_hold_the_separator():
    assert parse.parse_table("JobID|JobName\n7|a|b\n") == [{"JobID": "7", "JobName": "a|b"}]


def test_layout_names_the_node_of_each_rank():
    assert parse.parse_layout(recorded("layout.txt")) == {0: "node-1", 1: "node-2", 2: "node-3"}


def test_layout_with_several_ranks_on_a_node():
    text = "\tNode 0 (node-1), 3 task(s): 0-2 \n\tNode 1 (node-2), 3 task(s): 3,5-6 \n"
    assert parse.parse_layout(text) == {0: "node-1", 1: "node-1", 2: "node-1", 3: "node-2", 5: "node-2", 6: "node-2"}
    assert parse.parse_layout("sattach: error: Invalid job id") == {}


def rank_line(rank: int, host: str = "node-1") -> str:
    return (
        f'{{"record": "rank", "rank": {rank}, "world_size": 2, "local_rank": 0, "host": "{host}", '
        f'"slurmd_nodename": "{host}", "job_id": "7", "shard": "all"}}'
    )


def test_ranks_are_found_among_other_lines_and_behind_labels():
    log = f"srun: hello\n1: {rank_line(1, 'node-2')}\nstep 1/2 {{not json}}\n{rank_line(0)}\n"
    ranks = parse.parse_ranks(log)
    assert [(rank.rank, rank.host, rank.node) for rank in ranks] == [(0, "node-1", "node-1"), (1, "node-2", "node-2")]


def test_a_rank_that_is_there_twice_stays_twice():
    ranks = parse.parse_ranks("\n".join([rank_line(0, "node-1"), rank_line(0, "node-3")]))
    assert [rank.host for rank in ranks] == ["node-1", "node-3"]


def test_gpus_are_counted_without_what_they_are_divided_into():
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-1a2b3c4d-0000-1111-2222-333344445555)\n"
    )
    assert parse.parse_gpus(text) == ["NVIDIA A100-SXM4-40GB", "NVIDIA H200"]
    assert parse.parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


@pytest.mark.parametrize(("text", "mib"), [("2048", 2048), ("512M", 512), ("2G", 2048), ("2GiB", 2048), ("1gb", 1024)])
def test_memory(text, mib):
    assert parse.parse_memory(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-1", "2T", "two", "1.5G", "G"])
def test_bad_memory_says_how_to_write_it(text):
    with pytest.raises(ValueError, match="write 2048"):
        parse.parse_memory(text)
