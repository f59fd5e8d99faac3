"""train.py as a user runs it: several processes, files, exit codes."""

import json

import pytest
import torch

from config import Config
from conftest import WORKSPACE
from processes import metrics, succeed, train

SMALL = ["--layers=2", "--heads=4", "--channels=32", "--block-size=16", "--batch-size=4", "--log-every=1"]

# train.py on a machine that fails: the rank given ends in the given way at the start of step 13.
FAILS = """
import os, sys, train
step = train.Run.step
def failing(run, number, journal):
    if number == 13 and os.environ.get("RANK", "0") == "{rank}":
        {how}
    return step(run, number, journal)
train.Run.step = failing
train.main()
"""
RAISE, KILL = 'raise RuntimeError("out of luck")', "os.kill(os.getpid(), 9)"


@pytest.fixture
def run(text_file, tmp_path):
    """A small run of train.py: run(name, flags...) -> the folder that it wrote, and its ranks."""

    def start(name, *arguments, how=succeed, **options):
        folder = tmp_path / name
        return folder, how(*SMALL, "--text", text_file, "--run-dir", folder, *arguments, **options)

    yield start
    assert not (WORKSPACE / "data" / text_file.name).exists(), "a run must not copy its text"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_none_equals_tp_over_20_steps(run, dtype, tolerance):
    flags = ("--steps", 20, "--eval-every", 10, "--dtype", dtype)
    alone, _ = run("none", *flags)
    apart, _ = run("tp", *flags, "--parallel", "tp", world_size=2)
    one, two = metrics(alone), metrics(apart)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, 21))
    for name in ("train_loss", "val_loss"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], abs=tolerance)
    assert one[0]["train_loss"] - one[-1]["train_loss"] > 100 * tolerance, "too little happens in this run to compare"


@pytest.mark.parametrize(("parallel", "world_size"), [("none", 1), ("tp", 2)])
def test_resume_equals_uninterrupted(run, parallel, world_size):
    flags = ("--steps", 20, "--eval-every", 5, "--checkpoint-every", 10, "--parallel", parallel)
    whole, _ = run("whole", *flags, world_size=world_size)
    crash = FAILS.format(rank=world_size - 1, how=RAISE)
    broken, ranks = run("broken", *flags, world_size=world_size, program=crash, how=train)
    assert all(rank.code != 0 for rank in ranks)
    assert metrics(broken)[-1]["step"] == 12
    run("broken", *flags, "--resume", broken / "checkpoint.pt", world_size=world_size)
    lines = [
        [(line["step"], line["train_loss"], line["val_loss"]) for line in metrics(each)] for each in (whole, broken)
    ]
    assert lines[0] == lines[1]
    expected, found = (torch.load(each / "checkpoint.pt") for each in (whole, broken))
    for part in ("model", "exp_avg", "exp_avg_sq"):
        for name, tensor in expected[part].items():
            assert torch.equal(tensor, found[part][name]), f"{part} {name} differs after a resume"


def test_a_checkpoint_of_two_ranks_continues_on_four_and_on_one(run):
    flags = ("--eval-every", 100, "--dtype", "float64", "--warmup", 0)
    two, _ = run("two", *flags, "--steps", 10, "--parallel", "tp", world_size=2)
    flags += ("--steps", 12, "--resume", two / "checkpoint.pt")
    one, _ = run("one", *flags)
    four, _ = run("four", *flags, "--parallel", "tp", world_size=4)
    assert metrics(four)[-1]["val_loss"] == pytest.approx(metrics(one)[-1]["val_loss"], abs=1e-9)


def test_what_a_run_leaves(run):
    folder, ranks = run("run", "--steps", 3, "--sample-length", 20, "--parallel", "tp", world_size=2)
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
    assert len(summary["sample"]) == 20
    assert summary["sample"] in ranks[0].stdout
    assert summary["val_loss"] == metrics(folder)[-1]["val_loss"]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "metrics.jsonl", "summary.json"]


@pytest.mark.parametrize("how", [RAISE, KILL], ids=["an exception", "a kill"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_others(run, rank, how):
    """Without srun's help: within seconds, not after --timeout."""
    program = FAILS.format(rank=rank, how=how)
    _, ranks = run("run", "--steps", 10_000, "--parallel", "tp", world_size=2, program=program, how=train, timeout=60)
    assert all(each.code != 0 for each in ranks)
    if how == RAISE:
        assert "out of luck" in ranks[rank].stderr


@pytest.mark.parametrize(
    ("flags", "world_size", "message"),
    [
        (["--parallel", "tp", "--heads", 2], 4, "--heads 2 cannot be divided over 4 ranks"),
        (["--parallel", "none"], 2, "1 process, but 2 were started"),
        (["--channels", 30], 1, "--channels 30 is not a multiple of --heads 4"),
        (["--channels", 36, "--heads", 4], 1, "9 channels a head, an odd number"),
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


def test_checkpoints_that_do_not_fit(run, tmp_path):
    folder, _ = run("run", "--steps", 3)
    path = folder / "checkpoint.pt"
    _, (other,) = run("other", "--layers", 1, "--resume", path, how=train)
    assert "has layers 2, but this run has 1" in other.stderr
    _, (done,) = run("done", "--steps", 3, "--resume", path, how=train)
    assert "is at step 3, and this run ends at --steps 3" in done.stderr
    half = tmp_path / "half.pt"
    half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, (broken,) = run("broken", "--resume", half, how=train)
    assert f"{half} is no checkpoint of train.py" in broken.stderr


def test_every_knob_is_a_flag_with_its_default():
    (ended,) = succeed("--help")
    for name, default in vars(Config()).items():
        assert f"--{name.replace('_', '-')} " in ended.stdout
        assert default == "" or f"default: {default}" in " ".join(ended.stdout.split())
