"""train.py as a user runs it: several processes, files, exit codes. Its checkpoints: test_checkpoints.py."""

import json
import re
import signal
import subprocess
import sys

import pytest
import torch

from gpt.config import RECIPES, Config, flag, of_recipes
from processes import TIMEOUT, metrics, spawn, succeed, train
from ranks import signals
from small_runs import DISAGREES, FAILS, KILL, OUTLINED, QUICK, RAISE, SAMPLES_LAST, STOPS, losses, newest


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
@pytest.mark.parametrize(
    ("parallel", "world_size", "recipe"),
    [
        *(("ddp", size, "plain") for size in (2, 3)),
        *((name, 2, "plain") for name in ("tp", "tp-dtensor", "pp")),
        *(("fsdp", 3, "plain"), ("hybrid", 4, "plain")),
        *((name, 2, "fast") for name in ("ddp", "tp")),
    ],
)
def test_a_strategy_equals_none_over_20_steps(run, uninterrupted, parallel, world_size, recipe, dtype, tolerance):
    flags = ("--steps", 20, "--eval-every", 10, "--dtype", dtype, "--recipe", recipe)
    apart, _ = run(parallel, *flags, "--parallel", parallel, world_size=world_size)
    one, two = metrics(uninterrupted(*flags)), metrics(apart)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, 21))
    for name in ("train_loss", "val_loss"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], abs=tolerance)
    assert one[0]["train_loss"] - one[-1]["train_loss"] > 100 * tolerance, "too little happens in this run to compare"


def test_what_a_run_leaves(run):
    flags = ("--steps", 3, "--profile-step", 20, "--parallel", "tp")
    folder, ranks = run("run", *flags, world_size=2, program=OUTLINED)
    records = [rank.record() for rank in ranks]
    assert [(each["record"], each["rank"], each["world_size"], each["local_rank"]) for each in records] == [
        ("rank", 0, 2, 0),
        ("rank", 1, 2, 1),
    ]
    assert records[1]["shard"] == "heads 2-3 of 4, MLP columns 64-127 of 128, vocabulary rows 14-26 of 27(28)"
    assert records[0]["slurmd_nodename"] is None
    assert records[0]["job_id"] is None
    assert ranks[1].stdout.count("\n") == 1, "only rank 0 says more than its record"
    assert "val " in ranks[0].stdout
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["placement"] == records
    assert summary["text"]["name"] == "words"
    assert summary["text"]["symbols"] == 27
    assert summary["collectives_per_step"] == {"forward": 8, "backward": 5, "gradient_norm": 1}
    assert 0 < summary["communication_share"] < 1
    assert [each["peak"] for each in summary["memory"]] == [None, None]
    assert f"a rank holds {summary['memory'][0]['held'] / 1e6:.1f} MB of parameters, gradients" in ranks[0].stdout
    assert len(summary["sample"]) == 20
    assert summary["sample"] in ranks[0].stdout
    assert summary["val_loss"] == metrics(folder)[-1]["val_loss"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "summary.json",
        "timeline.json",
    ]


def test_ranks_that_disagree_do_not_train(run):
    _, ranks = run("run", "--parallel", "ddp", world_size=2, program=DISAGREES, how=train)
    for rank in ranks:
        assert rank.code == 1
        assert "ranks disagree on the config" in rank.stderr


@pytest.mark.parametrize("how", [RAISE, KILL], ids=["an exception", "a kill"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_others(run, rank, how):
    """Without srun's help, and long before --timeout, which is 300 s."""
    program = FAILS.format(rank=rank, how=how)
    _, ranks = run("run", "--steps", 10_000, "--parallel", "tp", world_size=2, program=program, how=train, timeout=120)
    assert all(each.code != 0 for each in ranks)
    if how == RAISE:
        assert "out of luck" in ranks[rank].stderr


@pytest.mark.parametrize(
    ("flags", "world_size", "message"),
    [
        (["--parallel", "tp", "--heads", 2], 4, "--heads 2 cannot be divided over 4 ranks"),
        (["--parallel", "none"], 2, "1 process, but 2 were started"),
        (["--parallel", "hybrid", "--tp-size", 2], 3, "3 rank(s) cannot be divided into rows of --tp-size 2"),
        (
            ["--parallel", "ddp", "--accumulate", 3],
            2,
            "--batch-size 4 cannot be divided over 2 ranks, each in 3",
        ),
        (["--parallel", "pp", "--layers", 1], 2, "--layers 1 cannot be divided over 2 stages"),
        (["--parallel", "pp", "--microbatches", 1], 2, "--microbatches 1 cannot keep 2 stages busy: give 2 or more"),
        (
            ["--parallel", "pp", "--batch-size", 12, "--accumulate", 2],
            2,
            "--batch-size 12 cannot be divided into 8 equal microbatches",
        ),
        (
            ["--parallel", "tp-dtensor", "--sequence-parallel", "on", "--block-size", 15],
            2,
            "--sequence-parallel on cuts the sequence: --block-size 15 is not a multiple of the 2 ranks",
        ),
        *(
            (
                ["--parallel", name, "--all-reduce", "socket"],
                1,
                f"--all-reduce socket is for --parallel tp, ddp, hybrid, got --parallel {name}",
            )
            for name in ("none", "tp-dtensor", "fsdp", "pp")
        ),
        (["--parallel", "pp", "--wire", "bfloat16"], 1, "--wire bfloat16 is for --parallel tp, ddp, hybrid, got"),
        (["--break", "nonsense"], 1, "--break nonsense is not known; there are missing-f,"),
        (["--break", "missing-f"], 1, "--break missing-f is a mistake of --parallel tp"),
        (["--backend", "nccl"], 1, "--backend nccl needs a GPU for each rank, and rank 0 sees none"),
        (["--channels", 30], 1, "--channels 30 is not a multiple of --heads 4"),
        (["--channels", 36, "--heads", 4, "--recipe", "fast"], 1, "9 channels a head, an odd number"),
        (["--optimizer", "muon", "--recipe", "plain"], 1, "--optimizer muon is for --recipe fast, got --recipe plain"),
        (["--accumulate", 5], 1, "--accumulate 5 is more than the 4 of --batch-size"),
        (["--steps", 0], 1, "--steps must be at least 1, got 0"),
        (["--text", "/no/such/file"], 1, "cannot read the text /no/such/file"),
        (["--block-size", 5000], 1, "--block-size 5000 needs a longer text"),
        (["--resume", "/no/such/file"], 1, "cannot read the checkpoint /no/such/file"),
    ],
)
def test_mistakes(run, flags, world_size, message):
    _, ranks = run("run", *flags, world_size=world_size, how=train)
    for rank in ranks:
        assert rank.code == 1
        assert rank.stderr.startswith("train.py: error: ")
        assert message in rank.stderr
        assert "Traceback" not in rank.stderr


def answers(rank, _):
    """What a rank is told before a signal comes to the last one, and after it."""
    signals.received, told = 0, []
    for _ in range(2):
        interruption = signals.Interruption()
        interruption.ask()
        told.append(interruption.answer())
        if rank == 1:
            signals.remember(signal.SIGTERM, None)
    return torch.tensor(told)


def test_every_rank_learns_of_a_signal_to_one(tmp_path):
    assert [told.tolist() for told in spawn(answers, 2, tmp_path)] == [[0, signal.SIGTERM]] * 2


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGUSR1", 75)])
def test_a_signal_to_one_rank_saves_on_all(run, uninterrupted, name, code):
    program = STOPS.replace("SIGTERM", name).format(step=7)
    flags = ("--steps", 20, "--parallel", "ddp", "--log-every", 5)
    folder, ranks = run("run", *flags, world_size=2, program=program, how=train)
    assert [rank.code for rank in ranks] == [code, code]
    assert f"{name} at step 8: saved {newest(folder)}" in ranks[0].stdout
    assert ("no Slurm job to requeue" in ranks[0].stdout) == (name == "SIGUSR1")
    run("run", *flags, "--resume", "auto", world_size=2)
    assert losses(folder) == losses(uninterrupted(*flags, world_size=2))


@pytest.mark.parametrize(
    ("parallel", "flags", "transports"),
    [
        ("tp", ("--all-reduce", "socket"), {"socket"}),
        ("tp", (), {"gloo"}),
        ("tp-dtensor", (), {"gloo"}),
        ("ddp", (), {"gloo"}),
        ("ddp", ("--all-reduce", "socket"), {"socket"}),
        ("hybrid", ("--all-reduce", "socket"), {"socket"}),
        ("pp", (), {"gloo"}),
    ],
)
def test_a_run_names_what_carried_its_sums(run, parallel, flags, transports):
    folder, ranks = run("run", "--steps", 2, "--parallel", parallel, *flags, world_size=2)
    found = json.loads((folder / "summary.json").read_text())["transports"]
    assert found.keys() == transports
    assert f", over {'socket' if flags else 'gloo'}\n" in ranks[0].stdout
    for name, count in found.items():
        assert re.search(rf"^collectives of rank 0: .*\b{count} by {name}\b", ranks[0].stdout, re.MULTILINE)


def test_nobody_waits_for_the_sample(run, tmp_path):
    """Of a large model it may take longer than --timeout."""
    program = SAMPLES_LAST.format(file=str(tmp_path / "ended"))
    folder, _ = run("run", "--steps", 2, "--parallel", "ddp", world_size=2, program=program)
    assert len(json.loads((folder / "summary.json").read_text())["sample"]) == 20


def test_the_program_from_a_shell(workspace, text_file, tmp_path):
    """All other ranks here are forked from a process that has imported what they need; this one is not."""
    flags = [*QUICK, "--text", str(text_file), "--run-dir", str(tmp_path), "--steps", "2"]
    subprocess.run([sys.executable, str(workspace / "train.py"), *flags], check=True, timeout=TIMEOUT)
    assert metrics(tmp_path)[-1]["step"] == 2


def test_every_knob_is_a_flag_with_its_default():
    (ended,) = succeed("--help")
    for name, default in vars(Config()).items():
        assert f"{flag(name)} " in ended.stdout
        default = of_recipes(name) if name in RECIPES["plain"] else default
        assert default == "" or f"default: {default}" in " ".join(ended.stdout.split())
