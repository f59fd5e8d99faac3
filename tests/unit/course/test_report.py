"""The report holds what people look for, shows any name as it is, and its figures say what the recorded runs did."""

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slurmbed.course import compare, figures
from slurmbed.course.report import comparison_page, report_page
from slurmbed.course.runs import RunResult
from slurmbed.course.shard_map import holders, shard_figure
from slurmbed.slurm.placement import Placed, RankRecord

RECORDED = Path(__file__).parents[2] / "recorded"
VOID = {"meta", "img"}  # elements of HTML that have no end tag
MARKUP = "<b>KING</b> & \"queen' {{ 7 * 7 }} $\\frac$"  # HTML, a template's, and matplotlib's


def recorded(strategy: str, shard: str = "half", **changed) -> RunResult:
    """A recorded run, its summary with some values ``changed``, on as many nodes as ranks."""
    found = json.loads((RECORDED / f"run-{strategy}.json").read_text())
    size = found["summary"]["world_size"]
    ranks = [RankRecord(i, size, 0, f"node-{i + 1}", f"node-{i + 1}", "7", f"{shard} {i}") for i in range(size)]
    placed = [Placed(rank, rank.host) for rank in ranks]
    return RunResult(found["summary"] | changed, found["metrics"], placed, found["timeline"])


def comparison(*results: RunResult) -> str:
    return comparison_page(
        list(results), compare.HEADINGS, compare.rows(list(results)), 2, "make compare STRATEGIES=none,tp"
    )


class Page(HTMLParser):
    """What a browser shows: the text of each element, and the names of the pictures."""

    def __init__(self, page: str):
        super().__init__()
        self.open, self.pictures, self.cells, self.texts, self.classes = [], [], [], {}, []
        self.feed(page)
        self.close()
        assert self.open == [], "elements that are not closed"

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            picture = dict(attributes)
            data = picture["src"].removeprefix("data:image/png;base64,")
            assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
            self.pictures.append(picture["alt"])
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")
            self.classes.append((tag, dict(attributes).get("class")))
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without <{tag}>"
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data


def test_the_report_of_a_run():
    result = recorded("tp", sample="KING:")
    page = Page(report_page(result, "make train PARALLEL=tp STEPS=20"))
    assert page.texts["title"] == page.texts["h1"] == ["Job 7: tensor parallel over 2 ranks"]
    (lead, *_) = page.texts["p"]
    assert f"{result.summary['val_loss']:.3f} after 40 steps of recipe fast;" in lead
    assert "tinyshakespeare (100,000 characters, 61 symbols,\nfrom tinyshakespeare.txt); 829,568 parameters" in lead
    assert "a rank holds 5.1 MB of parameters, gradients and optimizer state" in lead
    assert "29% of the time in communication, by gloo;" in lead
    assert "All ranks ran on one machine" in page.texts["p"][1]
    assert page.cells == [
        ["rank", "node (log)", "node (Slurm)", "what it holds"],
        ["0", "node-1", "node-1", "half 0"],
        ["1", "node-2", "node-2", "half 1"],
    ]
    assert page.texts["pre"] == ["KING:", "make train PARALLEL=tp STEPS=20"]
    assert page.texts["h2"] == [
        "Loss",
        "One step on every rank",
        "Who holds what",
        "Placement",
        "Sample",
        "Repeat this run",
    ]
    assert page.pictures == ["loss curve", "timeline", "shard map"]


def test_the_report_of_a_run_on_gpus_says_how_much_memory_it_took_there():
    memory = [{"held": 5_000_000, "peak": 70_000_000}, {"held": 5_000_000, "peak": 91_230_000}]
    said = "optimizer state; with activations, at most 70.0 to 91.2 MB on its GPU."
    assert said in report_page(recorded("tp", memory=memory), "make train")
    assert "on its GPU" not in report_page(recorded("tp"), "make train")


def test_a_run_without_a_timeline_has_a_report_all_the_same():
    result = recorded("tp")
    page = Page(report_page(RunResult(result.summary, result.metrics, result.placed), "make train"))
    assert page.pictures == ["loss curve", "shard map"]
    assert "One step on every rank" not in page.texts["h2"]


def test_markup_in_a_name_or_a_sample_is_shown_and_not_obeyed():
    text = recorded("tp").summary["text"] | {"name": MARKUP, "source": MARKUP}
    result = recorded("tp", shard=MARKUP, sample=MARKUP, text=text)
    page = Page(report_page(result, MARKUP))
    assert page.texts["pre"] == [MARKUP, MARKUP]
    assert page.texts["p"][0].count(MARKUP) == 2
    assert page.cells[1][3] == f"{MARKUP} 0"
    both = Page(comparison(recorded("none", text=text), result))
    assert both.cells[-1][3] == f"{MARKUP} 1"


def test_the_report_of_a_comparison():
    page = Page(comparison(recorded("none", val_loss=2.5), recorded("tp", val_loss=2.75)))
    assert page.texts["h1"] == ["2 strategies compared"]
    assert "recipe fast: 40 steps of 16 sequences" in page.texts["p"][0]
    assert "one machine of 2 CPUs" in page.texts["p"][0]
    assert page.texts["pre"] == ["make compare STRATEGIES=none,tp"]
    assert page.pictures == ["loss curves", "timeline", "shard map", "shard map"]
    headings, *rows = page.cells[:3]
    assert [row[:3] for row in rows] == [["none", "1", "1"], ["tp", "2", "2"]]
    assert [dict(zip(headings, row, strict=True))["carried by"] for row in rows] == ["", "gloo"]
    assert dict(zip(headings, rows[1], strict=True))["collectives a step"] == "14"
    assert [dict(zip(headings, row, strict=True))["difference to none"] for row in rows] == ["+0.0e+00", "+2.5e-01"]
    assert page.texts["h3"] == ["one process", "tensor parallel over 2 ranks"]
    assert page.cells[-1] == ["1", "node-2", "node-2", "half 1"]


def test_figures_are_flush_right_and_names_are_not():
    page = Page(comparison(recorded("none")))
    cells = [name for tag, name in page.classes if tag in ("td", "th")]
    assert cells == ([None] + ["number"] * 9) * 2 + ["number", None, None, None] * 2


def test_without_none_there_is_nothing_to_differ_from():
    (row,) = compare.rows([recorded("tp")])
    assert dict(zip(compare.HEADINGS, row, strict=True))["difference to none"] == ""


def test_shares_of_a_lane():
    spans = [["forward", 0, 2], ["idle", 2, 3], ["transfer", 3, 5], ["backward", 5, 10]]
    assert figures.shares({"spans": spans}) == pytest.approx({"compute": 0.7, "transfer": 0.2, "idle": 0.1})


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_timeline_has_a_lane_for_every_rank_and_says_how_it_spent_the_step():
    figure = figures.timeline_figure({"tp": recorded("tp").timeline})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0, node-1", "rank 1, node-1"]
    assert len([text for text in texts(figure) if text.endswith("%")]) == 6
    assert {"transfer", "idle"} <= {text.get_text() for text in figure.legends[0].get_texts()}


def test_of_many_ranks_the_first_are_shown():
    timeline = recorded("none").timeline
    many = {**timeline, "ranks": [{**timeline["ranks"][0], "rank": rank} for rank in range(12)]}
    axes = figures.timeline_figure({"ddp": many}).axes[0]
    assert "the first 8 of 12 ranks" in axes.get_title(loc="left")
    assert len(axes.get_yticks()) == 8


def shard(shape, dimension=None, start=0, stop=0):
    return {"shape": shape, "dimension": dimension, "start": start, "stop": stop}


def test_holders():
    shards = [{"a": shard([4, 2], 0, 0, 2)}, {"a": shard([4, 2], 0, 2, 4)}, {"a": shard([4, 2], 0, 0, 2)}]
    assert holders(shards, "a") == {(0, 0, 2): [0, 2], (0, 2, 4): [1]}
    assert holders([{"a": shard([1, 2])}, {"a": shard([1, 2], 0, 1, 1)}], "a") == {(None, 0, 0): [0]}


def test_the_shard_map_shows_what_each_rank_holds():
    found = texts(shard_figure(recorded("tp").summary["shards"], "tp"))
    assert {"896 x 128", "inward", "outward", "head"} <= set(found)
    assert found.count("0") == found.count("1") == 3, "in each matrix that is high enough: not in the head"


def test_numbers_of_ranks_do_not_overlap():
    figure = shard_figure(recorded("tp").summary["shards"], "tp")
    figures.png(figure)  # which lays it out
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text() in ("0", "1")]
    assert not [1 for i, box in enumerate(boxes) for other in boxes[:i] if box.overlaps(other)]


def test_the_shard_map_of_a_pipeline_shows_where_the_blocks_are():
    matrix = shard([128, 128])
    shards = [
        {"token_embedding.weight": matrix, "blocks.0.mlp.up.weight": matrix},
        {"blocks.1.mlp.up.weight": matrix, "head.weight": matrix},
    ]
    figure = shard_figure(shards, "pp")
    assert {"block 0", "block 1", "0", "1"} <= set(texts(figure))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rank 0", "rank 1"]


def test_what_every_rank_has_is_hatched():
    figure = shard_figure([{"head.weight": shard([128, 128])}] * 2, "ddp")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["every rank"]
