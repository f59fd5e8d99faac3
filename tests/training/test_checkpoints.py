"""train.py's checkpoints: a run that was stopped or moved goes on as if nothing had happened, or says why it cannot."""

import json
import shutil

import pytest
import torch

from processes import metrics, succeed, train
from run import checkpoint
from small_runs import AS_A_JOB, FAILS, QUICK, RAISE, STOPS, losses, newest, state

STRATEGIES = [("none", 1), ("ddp", 2), ("tp", 2), ("tp-dtensor", 2), ("fsdp", 2), ("pp", 2), ("hybrid", 4)]
KINDS = [("full", "plain"), ("sharded", "fast")]
CHAIN = [("tp", 2), ("none", 1), ("ddp", 4), ("tp-dtensor", 2), ("fsdp", 3), ("pp", 2), ("hybrid", 4)]


@pytest.mark.parametrize(("kind", "recipe"), KINDS)
@pytest.mark.parametrize(("parallel", "world_size"), STRATEGIES)
def test_resume_equals_uninterrupted(run, uninterrupted, parallel, world_size, kind, recipe):
    """The losses, and all that the last checkpoint holds, to the bit. The uninterrupted run's is a full one."""
    flags = ("--steps", 20, "--eval-every", 5, "--log-every", 3, "--checkpoint-every", 10)
    flags = (*flags, "--parallel", parallel, "--recipe", recipe)
    crash = FAILS.format(rank=world_size - 1, how=RAISE)
    broken, ranks = run("run", *flags, "--checkpoint", kind, world_size=world_size, program=crash, how=train)
    assert all(rank.code != 0 for rank in ranks)
    assert metrics(broken)[-1]["step"] == 12
    _, ranks = run("run", *flags, "--checkpoint", kind, "--resume", "auto", world_size=world_size)
    assert "step-000010.json at step 10" in ranks[0].stdout
    assert len(list(broken.glob("checkpoints/step-000020-rank-*.pt"))) == (world_size if kind == "sharded" else 1)
    whole = uninterrupted(*flags, world_size=world_size)
    assert losses(whole) == losses(broken)
    expected, found = state(whole), state(broken)
    assert (
        expected.keys()
        == found.keys()
        == {"parameter", "exp_avg", "exp_avg_sq"} | ({"momentum"} if recipe == "fast" else set())
    )
    for key, tensors in expected.items():
        assert tensors.keys() == found[key].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, found[key][name]), f"{key} {name} differs after a resume"


@pytest.mark.parametrize(("kind", "recipe"), KINDS)
def test_a_checkpoint_continues_under_any_strategy(run, uninterrupted, kind, recipe):
    """tp on 2 ranks -> none -> ddp on 4 -> ..., five steps each: the losses of one process all the way."""
    flags = ("--dtype", "float64", "--warmup", 0, "--eval-every", 1, "--steps", 5 * len(CHAIN), "--recipe", recipe)
    found, resume = [], ()
    for number, (parallel, world_size) in enumerate(CHAIN, start=1):
        stop = STOPS.format(step=5 * number)
        strategy = ("--parallel", parallel, "--checkpoint", kind, *resume)
        folder, _ = run(parallel, *flags, *strategy, world_size=world_size, program=stop, how=train)
        found += [line["val_loss"] for line in metrics(folder)]
        resume = ("--resume", newest(folder))
    assert found == pytest.approx([line["val_loss"] for line in metrics(uninterrupted(*flags))], abs=1e-9)


def test_checkpoints_that_do_not_fit(run, text_file, tmp_path):
    folder, _ = run("run", "--steps", 3, "--recipe", "plain")
    path = newest(folder)
    _, (other,) = run("other", "--layers", 1, "--recipe", "plain", "--resume", path, how=train)
    assert "has layers 2, but this run has 1" in other.stderr
    _, (fast,) = run("fast", "--recipe", "fast", "--resume", path, how=train)
    assert "has recipe plain, but this run has fast" in fast.stderr
    _, (done,) = run("done", "--steps", 2, "--recipe", "plain", "--resume", path, how=train)
    assert "is at step 3, and this run ends at --steps 2" in done.stderr
    backwards = tmp_path / "backwards.txt"
    backwards.write_text(text_file.read_text()[::-1])
    _, (another,) = run("another", "--recipe", "plain", "--text", backwards, "--resume", path, how=train)
    assert f"{path} was trained on the text" in another.stderr
    file = path.with_name("step-000003-rank-0.pt")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    _, (broken,) = run("broken", "--recipe", "plain", "--resume", path, how=train)
    assert f"{file} is damaged" in broken.stderr


def test_what_differs_from_the_run_before_is_said(run):
    flags = ("--lr", 0.01, "--checkpoint-every", 2)
    run("run", *flags, "--steps", 2)
    _, (same,) = run("run", *flags, "--steps", 2, "--resume", "auto")
    assert "step-000002.json at step 2\n" in same.stdout
    changed = ("--steps", 4, "--seed", 7, "--batch-size", 5, "--lr", 0.02, "--muon-lr", 0.03)
    _, (other,) = run("run", *changed, "--resume", "auto")
    said = "--seed 1337 -> 7, --batch-size 4 -> 5, --steps 2 -> 4, --lr 0.01 -> 0.02, --muon-lr 0.04 -> 0.03"
    assert f"step-000002.json at step 2, not as before: {said}\n" in other.stdout


@pytest.mark.parametrize(("parallel", "world_size", "savers"), [("ddp", 2, 1), ("hybrid", 4, 2), ("tp", 2, 2)])
def test_of_copies_one_is_saved(run, parallel, world_size, savers):
    flags = ("--parallel", parallel, "--checkpoint", "sharded", "--steps", 2)
    folder, _ = run("run", *flags, world_size=world_size)
    files = sorted(newest(folder).parent.glob("step-000002-rank-*.pt"))
    names = [set(torch.load(file)["state"]["parameter"]) for file in files]
    assert [bool(each) for each in names] == [True] * savers + [False] * (world_size - savers)
    assert all("head.weight" in each for each in names[:savers])


@pytest.fixture
def ten_steps(uninterrupted, tmp_path):
    """A run of 10 steps that a test may damage, with checkpoints of steps 5 and 10; and its flags."""
    flags = ("--parallel", "tp", "--checkpoint", "sharded", "--checkpoint-every", 5)
    folder = shutil.copytree(uninterrupted(*flags, "--steps", 10, world_size=2), tmp_path / "run")
    assert [path.name for path in sorted(folder.glob("checkpoints/*.json"))] == ["step-000005.json", "step-000010.json"]
    return folder, flags


@pytest.mark.parametrize("damage", ["half a file", "no file", "a file less", "another model"])
def test_auto_takes_the_checkpoint_before_a_damaged_one(run, ten_steps, damage):
    folder, flags = ten_steps
    file = folder / "checkpoints" / "step-000010-rank-1.pt"
    if damage == "half a file":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "no file":
        file.unlink()
    elif damage == "a file less":
        record = json.loads(newest(folder).read_text())
        del record["files"][file.name]
        newest(folder).write_text(json.dumps(record))
    else:
        newest(folder).write_text(newest(folder).read_text().replace('"layers": 2', '"layers": 3'))
    _, ranks = run("run", *flags, "--steps", 12, "--resume", "auto", world_size=2)
    assert ranks[0].record()["rank"] == 0, "the first line is the rank's record"
    assert "passed over: " in ranks[0].stdout
    assert "step-000005.json at step 5" in ranks[0].stdout


def test_auto_does_not_begin_anew_when_every_checkpoint_is_damaged(run, ten_steps):
    folder, flags = ten_steps
    for path in folder.glob("checkpoints/step-*.json"):
        path.write_text("{}")
    _, ranks = run("run", *flags, "--steps", 14, "--resume", "auto", world_size=2, how=train)
    assert all(rank.code == 1 for rank in ranks)
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
    folder, _ = run("run", "--steps", 6, "--checkpoint-every", 2)
    assert sorted(path.name for path in folder.glob("checkpoints/*.json")) == ["step-000004.json", "step-000006.json"]
    assert len(list(folder.glob("checkpoints/*"))) == 4, "of those before no file is left"
    run("run", "--steps", 3)
    assert [path.name for path in folder.glob("checkpoints/*.json")] == ["step-000003.json"]
    assert metrics(folder)[-1]["step"] == 3


def test_a_job_that_was_queued_again_goes_on_from_its_own_checkpoint(run, text_file, tmp_path):
    """Not from the one that it was told to begin with."""
    first, _ = run("first", "--steps", 3)
    program = AS_A_JOB.format(restarts="{restarts}", folder=str(tmp_path))
    flags = (*QUICK, "--text", text_file, "--checkpoint-every", 2, "--resume", newest(first))
    (begun,) = succeed(*flags, "--steps", 8, program=program.format(restarts=0))
    assert "at step 3" in begun.stdout
    (again,) = succeed(*flags, "--steps", 9, program=program.format(restarts=1))
    assert "step-000008.json at step 8" in again.stdout


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path):
    def half(file):
        file.write_text("{")
        raise OSError("no space left")

    path = tmp_path / "step-000001.json"
    for before in (False, True):
        if before:
            path.write_text("an earlier one")
        with pytest.raises(OSError, match="no space left"):
            checkpoint.write(path, half)
        assert path.exists() == before
    assert path.read_text() == "an earlier one"


def test_auto_without_a_checkpoint_begins(run):
    folder, _ = run("run", "--steps", 3, "--resume", "auto")
    assert metrics(folder)[0]["step"] == 1


@pytest.mark.parametrize("restarts", [0, 1])
def test_auto_takes_only_what_the_same_job_left(text_file, tmp_path, restarts):
    """Job ids begin at 1 again on a new cluster: what another job 7 left is set aside, and kept."""
    flags = (*QUICK, "--text", text_file, "--checkpoint-every", 2, "--resume", "auto")
    succeed(*flags, "--steps", 4, program=AS_A_JOB.format(restarts=0, folder=str(tmp_path)))
    (second,) = succeed(*flags, "--steps", 6, program=AS_A_JOB.format(restarts=restarts, folder=str(tmp_path)))
    assert ("resumed from" in second.stdout) == (restarts == 1)
    assert [line["step"] for line in metrics(tmp_path / "runs" / "7")] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "runs" / "7-earlier-1" / "metrics.jsonl").exists() == (restarts == 0)
