"""train.py as a user runs it: several processes, files, exit codes."""

import json

import pytest
import torch

import checkpoint
from config import Config, flag
from conftest import WORKSPACE
from processes import metrics, succeed, train

SMALL = ["--layers=2", "--heads=4", "--channels=32", "--block-size=16", "--batch-size=4", "--log-every=1"]

# train.py on a machine that fails: the rank given ends in the given way at the start of step 13.
FAILS = """
import os, sys, train
step = train.Run.step
def failing(run, number, journal, **options):
    if number == 13 and os.environ.get("RANK", "0") == "{rank}":
        {how}
    return step(run, number, journal, **options)
train.Run.step = failing
train.main()
"""
# train.py that gets SIGTERM in the given step, on the last rank: after that step began, so the next is the last.
STOPS = """
import os, signal, train
step = train.Run.step
def stopped(run, number, journal, **options):
    if number == {step} and run.env.rank == run.env.world_size - 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(run, number, journal, **options)
train.Run.step = stopped
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
@pytest.mark.parametrize(
    ("parallel", "world_size"),
    [("ddp", 2), ("ddp", 3), ("tp", 2), ("tp-dtensor", 2), ("fsdp", 3), ("pp", 2), ("hybrid", 4)],
)
def test_a_strategy_equals_none_over_20_steps(run, parallel, world_size, dtype, tolerance):
    flags = ("--steps", 20, "--eval-every", 10, "--dtype", dtype)
    alone, _ = run("none", *flags)
    apart, _ = run(parallel, *flags, "--parallel", parallel, world_size=world_size)
    one, two = metrics(alone), metrics(apart)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, 21))
    for name in ("train_loss", "val_loss"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], abs=tolerance)
    assert one[0]["train_loss"] - one[-1]["train_loss"] > 100 * tolerance, "too little happens in this run to compare"


STRATEGIES = [("none", 1), ("ddp", 2), ("tp", 2), ("tp-dtensor", 2), ("fsdp", 2), ("pp", 2), ("hybrid", 4)]
CHAIN = [("tp", 2), ("none", 1), ("ddp", 4), ("tp-dtensor", 2), ("fsdp", 3), ("pp", 2), ("hybrid", 4)]


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.parametrize(("parallel", "world_size"), STRATEGIES)
def test_resume_equals_uninterrupted(run, parallel, world_size, kind):
    flags = ("--steps", 20, "--eval-every", 5, "--log-every", 3, "--checkpoint-every", 10)
    flags += ("--parallel", parallel, "--checkpoint", kind)
    whole, _ = run("whole", *flags, world_size=world_size)
    crash = FAILS.format(rank=world_size - 1, how=RAISE)
    broken, ranks = run("broken", *flags, world_size=world_size, program=crash, how=train)
    assert all(rank.code != 0 for rank in ranks)
    assert metrics(broken)[-1]["step"] == 12
    _, ranks = run("broken", *flags, "--resume", "auto", world_size=world_size)
    assert "step-000010.json at step 10" in ranks[0].stdout
    assert losses(whole) == losses(broken)
    expected, found = state(whole), state(broken)
    assert expected.keys() == found.keys() == {"parameter", "exp_avg", "exp_avg_sq", "momentum"}
    for part, tensors in expected.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, found[part][name]), f"{part} {name} differs after a resume"


def losses(folder):
    return [(line["step"], line["train_loss"], line["val_loss"]) for line in metrics(folder)]


def newest(folder):
    """The newest checkpoint of a run."""
    return max(folder.glob("checkpoints/*.json"))


def state(folder):
    """What the newest checkpoint of a run holds, put together."""
    return checkpoint.read(newest(folder))["state"]


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_a_checkpoint_continues_under_any_strategy(run, kind):
    """tp on 2 ranks -> none -> ddp on 4 -> ..., five steps each: the losses of one process all the way."""
    flags = ("--dtype", "float64", "--warmup", 0, "--eval-every", 1, "--checkpoint", kind, "--steps", 5 * len(CHAIN))
    straight, _ = run("straight", *flags)
    found, resume = [], ()
    for number, (parallel, world_size) in enumerate(CHAIN, start=1):
        stop = STOPS.format(step=5 * number)
        strategy = ("--parallel", parallel, *resume)
        folder, _ = run(parallel, *flags, *strategy, world_size=world_size, program=stop, how=train)
        found += [line["val_loss"] for line in metrics(folder)]
        resume = ("--resume", newest(folder))
    assert found == pytest.approx([line["val_loss"] for line in metrics(straight)], abs=1e-9)


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
    assert summary["collectives_per_step"] == {"forward": 6, "backward": 3, "gradient_norm": 1}
    assert 0 < summary["communication_share"] < 1
    assert len(summary["sample"]) == 20
    assert summary["sample"] in ranks[0].stdout
    assert summary["val_loss"] == metrics(folder)[-1]["val_loss"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "summary.json",
        "timeline.json",
    ]


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
            "--batch-size 12 cannot be divided into 8 equal pieces",
        ),
        (
            ["--parallel", "tp-dtensor", "--sequence-parallel", "on", "--block-size", 15],
            2,
            "--sequence-parallel on cuts the sequence: --block-size 15 is not a multiple of the 2 ranks",
        ),
        (["--break", "nonsense"], 1, "--break nonsense is not known; there are missing-f,"),
        (["--break", "missing-f"], 1, "--break missing-f is a mistake of --parallel tp"),
        (["--backend", "nccl"], 1, "--backend nccl needs a GPU for each rank, and rank 0 sees none"),
        (["--channels", 30], 1, "--channels 30 is not a multiple of --heads 4"),
        (["--channels", 36, "--heads", 4], 1, "9 channels a head, an odd number"),
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


def test_checkpoints_that_do_not_fit(run):
    folder, _ = run("run", "--steps", 3)
    path = newest(folder)
    _, (other,) = run("other", "--layers", 1, "--resume", path, how=train)
    assert "has layers 2, but this run has 1" in other.stderr
    _, (done,) = run("done", "--steps", 2, "--resume", path, how=train)
    assert "is at step 3, and this run ends at --steps 2" in done.stderr
    file = path.with_name("step-000003-rank-0.pt")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    _, (broken,) = run("broken", "--resume", path, how=train)
    assert f"{file} is damaged" in broken.stderr


@pytest.mark.parametrize("damage", ["half a file", "no file", "another model"])
def test_auto_takes_the_checkpoint_before_a_damaged_one(run, damage):
    flags = ("--parallel", "tp", "--checkpoint", "sharded", "--checkpoint-every", 5)
    folder, _ = run("run", *flags, "--steps", 10, world_size=2)
    assert [path.name for path in sorted(folder.glob("checkpoints/*.json"))] == ["step-000005.json", "step-000010.json"]
    file = folder / "checkpoints" / "step-000010-rank-1.pt"
    if damage == "half a file":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "no file":
        file.unlink()
    else:
        newest(folder).write_text(newest(folder).read_text().replace('"layers": 2', '"layers": 3'))
    _, ranks = run("run", *flags, "--steps", 12, "--resume", "auto", world_size=2)
    assert ranks[0].record()["rank"] == 0, "the first line is the rank's record"
    assert "passed over: " in ranks[0].stdout
    assert "step-000005.json at step 5" in ranks[0].stdout
    for path in folder.glob("checkpoints/step-*.json"):
        path.write_text("{}")
    _, ranks = run("run", *flags, "--steps", 14, "--resume", "auto", world_size=2, how=train)
    assert "can be used; move it away to begin anew" in ranks[0].stderr


def test_a_run_that_was_stopped_at_its_end_is_finished(run):
    """Requeued after its last step, while it wrote its sample: only the end is done again."""
    flags = ("--steps", 4, "--parallel", "ddp")
    folder, _ = run("run", *flags, world_size=2)
    expected = json.loads((folder / "summary.json").read_text())
    run("run", *flags, "--resume", "auto", world_size=2)
    found = json.loads((folder / "summary.json").read_text())
    for name in ("train_loss", "val_loss", "sample", "steps"):
        assert found[name] == expected[name]
    assert found["tokens_per_s"] == 0


def test_a_shorter_run_in_the_same_folder_leaves_nothing_of_the_longer(run):
    run("run", "--steps", 6, "--checkpoint-every", 2)
    folder, _ = run("run", "--steps", 3)
    assert [path.name for path in folder.glob("checkpoints/*.json")] == ["step-000003.json"]
    assert metrics(folder)[-1]["step"] == 3


def test_a_job_that_was_queued_again_goes_on_from_its_own_checkpoint(run, text_file, tmp_path):
    """Not from the one that it was told to begin with."""
    first, _ = run("first", "--steps", 3)
    program = AS_A_JOB.format(restarts="{restarts}", folder=str(tmp_path))
    flags = (*SMALL, "--text", text_file, "--checkpoint-every", 2, "--resume", newest(first))
    (begun,) = succeed(*flags, "--steps", 8, program=program.format(restarts=0))
    assert "at step 3" in begun.stdout
    (again,) = succeed(*flags, "--steps", 9, program=program.format(restarts=1))
    assert "step-000008.json at step 8" in again.stdout


def test_auto_without_a_checkpoint_begins(run):
    folder, _ = run("run", "--steps", 3, "--resume", "auto")
    assert metrics(folder)[0]["step"] == 1


# train.py as Slurm's job 7, started anew or queued again, in a workspace whose runs/7 is there already.
AS_A_JOB = """
import os, config, train
from pathlib import Path
os.environ.update(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="{restarts}")
config.HERE = Path({folder!r})
train.main()
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_auto_takes_only_what_the_same_job_left(text_file, tmp_path, restarts):
    """Job ids begin at 1 again on a new cluster: what another job 7 left is set aside, and kept."""
    flags = (*SMALL, "--text", text_file, "--checkpoint-every", 2, "--resume", "auto")
    succeed(*flags, "--steps", 4, program=AS_A_JOB.format(restarts=0, folder=str(tmp_path)))
    (second,) = succeed(*flags, "--steps", 6, program=AS_A_JOB.format(restarts=restarts, folder=str(tmp_path)))
    assert ("resumed from" in second.stdout) == (restarts == 1)
    assert [line["step"] for line in metrics(tmp_path / "runs" / "7")] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "runs" / "7-earlier-1" / "metrics.jsonl").exists() == (restarts == 0)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGUSR1", 75)])
def test_a_signal_to_one_rank_saves_on_all(run, name, code):
    program = STOPS.replace("SIGTERM", name).format(step=7)
    flags = ("--steps", 20, "--parallel", "ddp", "--log-every", 5)
    folder, ranks = run("run", *flags, world_size=2, program=program, how=train)
    assert [rank.code for rank in ranks] == [code, code]
    assert f"{name} at step 8: saved {newest(folder)}" in ranks[0].stdout
    assert ("no Slurm job to requeue" in ranks[0].stdout) == (name == "SIGUSR1")
    run("run", *flags, "--resume", "auto", world_size=2)
    straight, _ = run("straight", *flags, world_size=2)
    assert losses(folder) == losses(straight)


def test_every_knob_is_a_flag_with_its_default():
    (ended,) = succeed("--help")
    for name, default in vars(Config()).items():
        assert f"{flag(name)} " in ended.stdout
        assert default == "" or f"default: {default}" in " ".join(ended.stdout.split())
