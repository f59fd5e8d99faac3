"""The benchmark of collectives: its arithmetic, its reading of iperf3, and what a small run writes."""

import json
from pathlib import Path

import pytest

from measure import collectives
from processes import succeed, train

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
MAIN = "from measure import collectives; collectives.IPERF_SECONDS = 1; collectives.main()"


@pytest.mark.parametrize(
    ("collective", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1)]
)
def test_bus_bandwidth_of_four_ranks(collective, factor):
    assert collectives.bus_bandwidth(collective, 8_000_000, 0.5, 4) == pytest.approx(factor * 16e6)


@pytest.mark.parametrize(("name", "gbits"), [("iperf3-one-way.json", 2.4369), ("iperf3-bidir.json", 3.3210)])
def test_iperf3_gives_bytes_a_second_in_each_direction(name, gbits):
    found = collectives.iperf_bandwidth((RECORDED / name).read_text())
    assert found == pytest.approx(gbits / 8 * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"error": "unable to connect to server"}', "unable to connect to server"), ('{"end": {}}', "no result")],
)
def test_iperf3_that_failed_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        collectives.iperf_bandwidth(text)


def test_a_small_run_writes_a_row_for_each_collective_and_size(tmp_path):
    ranks = succeed("--largest", 4096, "--run-dir", tmp_path, world_size=2, program=MAIN)
    found = json.loads((tmp_path / "collectives.json").read_text())
    assert found["ranks"] == 2
    assert {row["collective"] for row in found["rows"]} == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert {row["bytes"] for row in found["rows"]} == {1024, 2048, 4096}
    for row in found["rows"]:
        expected = collectives.bus_bandwidth(row["collective"], row["bytes"], row["seconds"], 2)
        assert row["bus_bandwidth"] == pytest.approx(expected)
        limit = found["limits"]["one_way" if row["collective"] == "broadcast" else "both_ways"]
        assert (row["of_limit"] is None) == (limit is None)
        assert row["label"] in ranks[0].stdout


def test_one_rank_has_nobody_to_talk_to():
    (alone,) = train(program=MAIN)
    assert alone.code != 0
    assert "one rank has nobody to talk to" in alone.stderr
