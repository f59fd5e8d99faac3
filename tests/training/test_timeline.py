"""The timeline of a step: made-up ranks with a known answer, and what real runs leave."""

import json

import pytest

from processes import succeed
from ranks.timeline import all_began, assemble, common, lane, merged, without
from small_runs import SMALL


def rank(*spans, began=100.0, collectives=(), machine="one"):
    return {"machine": machine, "began": began, "host": "here", "lane": list(spans), "collectives": list(collectives)}


def test_idle_lasts_until_the_slowest_rank_begins():
    """Rank 0 enters after 1 s, rank 1 after 3 s, both leave after 4 s: rank 0 idles for 2 s, both transfer for 1 s."""
    fast = rank(["forward", 0, 1], ["wait", 1, 4], ["backward", 4, 5], collectives=[("forward", [0, 1], 1, 4)])
    slow = rank(["forward", 0, 3], ["wait", 3, 4], ["backward", 4, 5], collectives=[("forward", [0, 1], 3, 4)])
    one, two = assemble([fast, slow])["ranks"]
    assert one["spans"] == [["forward", 0, 1], ["idle", 1, 3], ["transfer", 3, 4], ["backward", 4, 5]]
    assert two["spans"] == [["forward", 0, 3], ["transfer", 3, 4], ["backward", 4, 5]]
    assert one["beside"] == two["beside"] == []


def test_a_collective_beside_computing_is_no_wait():
    both = rank(["backward", 0, 3], ["wait", 3, 4], collectives=[("gloo:all_reduce", None, 1, 4)])
    for each in assemble([both, both])["ranks"]:
        assert each["spans"] == [["backward", 0, 3], ["transfer", 3, 4]]
        assert each["beside"] == [[1, 3]]


def test_no_span_is_shorter_than_what_is_written():
    """A wait of 10 ns, and one of which the other rank leaves 10 ns."""
    fast = rank(["forward", 0, 1], ["wait", 1, 1.00000001], ["backward", 1.00000001, 2], ["wait", 2, 3])
    slow = rank(["forward", 0, 2.99999999], ["wait", 2.99999999, 3])
    for each in fast, slow:
        each["collectives"] = [("gloo:all_reduce", None, each["lane"][-1][1], 3)]
    one, two = assemble([fast, slow])["ranks"]
    assert one["spans"] == [["forward", 0, 1], ["backward", 1, 2], ["idle", 2, 3]]
    assert two["spans"] == [["forward", 0, 3]]


def test_groups_are_matched_apart():
    """Two pairs: the second collective of rank 0 is the first of its pair with rank 2."""
    pair, other, across = [0, 1], [2, 3], [0, 2]
    began = all_began(
        [
            [("forward", pair, 1, 5), ("forward", across, 6, 9)],
            [("forward", pair, 4, 5)],
            [("forward", other, 1, 2), ("forward", across, 8, 9)],
            [("forward", other, 1, 2)],
        ]
    )
    assert began == [[4, 8], [4], [1, 8], [1]]


def test_a_receive_idles_until_the_send():
    began = all_began([[("gloo:recv", None, 1, 5), ("gloo:send", None, 6, 7)], [("gloo:send", None, 4, 5)]])
    assert began == [[4, 6], [4]]


def test_a_send_that_nobody_waited_for_yet_is_no_transfer():
    waits = rank(["wait", 0, 5], ["forward", 5, 6], collectives=[("gloo:send", None, 0, 6), ("gloo:recv", None, 0, 5)])
    sends = rank(["forward", 0, 6], collectives=[("gloo:send", None, 4, 6)])
    one, two = assemble([waits, sends])["ranks"]
    assert one["spans"] == [["idle", 0, 4], ["transfer", 4, 5], ["forward", 5, 6]]
    assert one["beside"] == two["beside"] == []


def test_what_only_one_rank_waits_for_is_no_idleness():
    """A pipeline's first stage waits for its own sends forward, the last for its own backward."""
    assert all_began([[("forward", None, 1, 5)], [("backward", None, 3, 6)]]) == [[1], [3]]


@pytest.mark.parametrize(("machines", "clock", "second"), [("aa", "shared", 0.5), ("ab", "barrier", 0)])
def test_ranks_on_other_machines_count_from_the_barrier(machines, clock, second):
    ranks = [rank(["forward", 0, 1], machine=machines[0]), rank(["forward", 0, 1], began=100.5, machine=machines[1])]
    timeline = assemble(ranks)
    assert timeline["clock"] == clock
    assert timeline["ranks"][1]["spans"] == [["forward", second, second + 1]]


@pytest.mark.parametrize("end", [4, 5.0002], ids=["in the pause", "noted late"])
def test_a_rank_waits_only_in_a_pause_in_which_a_transfer_ends(end):
    busy = [(0, 1, "forward"), (2, 3, "backward"), (5, 6, "optimizer")]
    assert lane(busy, marks=[], flights=[(0.5, end)], calls=[], stop=7) == [
        ["forward", 0, 1],
        ["backward", 1, 3],
        ["wait", 3, min(end, 5)],
        ["optimizer", min(end, 5), 7],
    ]


def test_a_wait_begins_with_the_call():
    busy = [(0, 1, "backward"), (5, 6, "optimizer")]
    found = lane(busy, marks=[], flights=[(3, 4)], calls=[(2, 2.5)], stop=6)
    assert found == [["backward", 0, 2], ["wait", 2, 4], ["optimizer", 4, 6]]


def test_intervals():
    assert merged([(3, 4), (0, 1), (1, 2)]) == [(0, 2), (3, 4)]
    assert common([(0, 3), (5, 6)], [(1, 2), (2.5, 5.5)]) == [(1, 2), (2.5, 3), (5, 5.5)]
    assert without([(0, 3)], [(1, 2)]) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("parallel", "world_size"),
    [("none", 1), ("ddp", 2), ("tp", 2), ("tp-dtensor", 2), ("fsdp", 2), ("hybrid", 4), ("pp", 2)],
)
def test_the_timeline_of_a_run(text_file, tmp_path, parallel, world_size):
    flags = ("--text", text_file, "--run-dir", tmp_path, "--steps", 4, "--parallel", parallel)
    succeed(*SMALL, *flags, world_size=world_size)
    timeline = json.loads((tmp_path / "timeline.json").read_text())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (timeline["step"], timeline["clock"]) == (3, "shared")
    assert [each["rank"] for each in timeline["ranks"]] == list(range(world_size))
    for each in timeline["ranks"]:
        spans = each["spans"]
        assert all(start < stop for _, start, stop in spans)
        ends = [stop for _, _, stop in spans]
        assert [start for _, start, _ in spans[1:]] == pytest.approx(ends[:-1], abs=1e-6), "a lane has no gaps"
        assert {"forward", "backward", "optimizer"} <= {kind for kind, _, _ in spans}
        assert all(spans[0][1] <= start < stop <= ends[-1] for start, stop in each["beside"])
        if parallel != "fsdp":  # whose reduce-scatters gloo records as all-reduces, so that they are listed twice
            assert each["collectives"] == sum(summary["collectives_per_step"].values())
    # A rank that comes last waits for nobody, and ddp's buckets can travel while it computes.
    travelled = [
        each for each in timeline["ranks"] if each["beside"] or "transfer" in {kind for kind, _, _ in each["spans"]}
    ]
    assert bool(travelled) == (world_size > 1)


def test_a_profiled_step_counts_for_the_loss_but_not_for_the_throughput(text_file, tmp_path):
    def lines(name, step):
        folder = tmp_path / name
        flags = ("--text", text_file, "--run-dir", folder, "--steps", 3, "--profile-step", step)
        succeed(*SMALL, *flags)
        assert (folder / "timeline.json").exists() == (step > 0)
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    profiled, plain = lines("profiled", 1), lines("plain", 0)
    assert [line["train_loss"] for line in profiled] == [line["train_loss"] for line in plain]
    assert profiled[0]["tokens_per_s"] == 0 < plain[0]["tokens_per_s"]
    assert all(line["tokens_per_s"] > 0 for line in profiled[1:])
