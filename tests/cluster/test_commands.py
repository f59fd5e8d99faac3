"""What the commands that train and measure print and leave, and how they end when they cannot."""

import json
from pathlib import Path

import pytest

from harness import engine
from harness.clusters import TEXT
from harness.commands import make
from harness.internals import parse_ranks
from harness.lessons import PAGE
from harness.names import NAME
from slurmbed import BatchJob

OTHER = f"{NAME}-other"


@pytest.fixture
def two_nodes(slurm_cluster):
    """Puts the cluster back after a command that lets it grow."""
    yield
    scaled = make("scale", f"NAME={slurm_cluster.name}", "NODES=2")
    assert scaled.returncode == 0, scaled.stderr


def test_train_ends_with_placement_losses_sample_and_report(slurm_cluster):
    """As a newcomer types it: it prepares the text, too."""
    done = make("train", f"NAME={NAME}", "STEPS=10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the log and Slurm agree" in done.stdout
    for node in ("node-1", "node-2"):
        assert node in done.stdout
    assert "validation loss" in done.stdout
    assert "sample" in done.stdout
    report = done.stdout.split("report: ")[1].strip()
    assert "base64," in Path(report).read_text()


def test_an_unknown_strategy_is_refused_before_a_job(slurm_cluster):
    done = make("train", f"NAME={NAME}", "PARALLEL=magic")
    assert done.returncode != 0
    assert "there is no strategy 'magic'" in done.stderr
    assert "choose from none, ddp, tp" in done.stderr


def test_compare_runs_strategies_on_nodes_of_their_own_to_the_same_loss(slurm_cluster, workspace):
    """Each job's placement is proved before it counts.

    The strategies that are left out are compared with none by the lessons.
    """
    done = make("compare", f"NAME={NAME}", "STEPS=6", "STRATEGIES=none,pp", f"TEXT={workspace / TEXT}")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.split("the same batches by every strategy")[1].splitlines()]
    table = {row[0]: row[1:] for row in rows if row and row[0] in ("none", "pp")}
    assert list(table) == ["none", "pp"]
    for name, (ranks, nodes, *_, difference) in table.items():
        assert ranks == nodes == {"none": "1", "pp": "2"}[name]
        assert name == "none" or abs(float(difference)) < 1e-3, f"{name} does not train the model that none does"
    report = done.stdout.split("report: ")[1].strip()
    assert "/runs/compare-" in report
    written = Path(report).read_text()
    assert "STRATEGIES=none,pp" in written
    assert written.count("base64,") == len(table) + 2, "losses, a timeline of each, shard maps"


def test_bubble_ends_with_a_table_and_a_picture(slurm_cluster):
    done = make("bubble", f"NAME={NAME}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "idle: theory" in done.stdout
    assert Path(done.stdout.split("picture: ")[1].strip()).read_bytes().startswith(b"\x89PNG")


def test_bench_collectives_measures_between_nodes_beside_iperf3_and_ends_with_a_table_and_a_plot(slurm):
    done = make("bench-collectives", f"NAME={NAME}", "LARGEST=2048")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all_reduce by gloo" in done.stdout
    plot = Path(done.stdout.split("plot: ")[1].strip())
    assert plot.read_bytes().startswith(b"\x89PNG")
    ranks = parse_ranks(BatchJob(slurm, plot.parent.name).stdout)
    assert sorted(rank.node for rank in ranks) == ["node-1", "node-2"]
    found = json.loads((plot.parent / "collectives.json").read_text())
    assert all(limit > 0 for limit in found["limits"].values())
    assert {row["bytes"] for row in found["rows"]} == {1024, 2048}


def test_train_that_fails_shows_state_exit_code_and_the_last_lines(slurm_cluster, workspace, two_nodes):
    """Four heads over three ranks: the cluster grows for it, and the job refuses with both numbers."""
    done = make("train", f"NAME={NAME}", "NODES=3", f"TEXT={workspace / TEXT}")
    assert done.returncode != 0
    assert "ended FAILED, exit code" in done.stderr
    assert "--heads 4 cannot be divided over 3 ranks" in done.stderr
    assert str(workspace / "runs") in done.stderr


def test_train_refuses_a_workspace_that_another_cluster_writes_to(slurm_cluster, workspace):
    try:
        assert make("up", f"NAME={OTHER}", "NODES=1", f"WORKSPACE={workspace}").returncode == 0
        done = make("train", f"NAME={OTHER}", "NODES=1", f"TEXT={workspace / TEXT}")
    finally:
        assert make("clean", f"NAME={OTHER}").returncode == 0
    assert done.returncode != 0
    assert f"the cluster {NAME} writes its runs to {workspace} too" in done.stderr
    assert engine.states(OTHER) == {}


def test_a_text_that_is_too_short_is_refused_before_a_job(slurm_cluster, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("ab\n" * 100)
    done = make("train", f"NAME={NAME}", f"TEXT={short}")
    assert done.returncode != 0
    assert "has 300 characters, it needs 1000 or more" in done.stderr


def test_grade_says_whether_an_exercise_is_done(slurm_cluster, workspace):
    not_yet = make("grade", f"NAME={NAME}", "LESSON=4")
    assert not_yet.returncode != 0
    assert "no sampler yet" in not_yet.stdout + not_yet.stderr
    answer = PAGE.read_text().partition("def indices(")[2].partition("```")[0]
    (workspace / "exercises" / "sampler.py").write_text(f"import torch\n\n\ndef indices({answer}")
    done = make("grade", f"NAME={NAME}", "LESSON=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lesson 4: 7 of 7\n" in done.stdout
