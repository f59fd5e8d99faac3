"""train_mnist.py on made-up digits: shares of ranks, equality with one process, resuming, precision, its files."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

import digits
import train_mnist
from mnist import checkpoint
from mnist.batches import Images, loaders
from mnist.config import Config
from mnist.data import load
from mnist.journal import DigitsJournal
from mnist.model import AmpError, build, choose_amp
from processes import metrics, succeed, train

MNIST = "import train_mnist; train_mnist.main()"
SMALL = ["--batch-size=12", "--log-every=1", "--eval-batch-size=5", "--amp=off"]
STEPS = digits.TRAIN // 12  # in an epoch
# train_mnist.py on a machine that fails: the last rank ends before the given epoch.
FAILS = """
import train_mnist
epoch = train_mnist.Run.epoch
def failing(run, number):
    if number == {epoch} and not run.is_rank_0:
        raise RuntimeError("out of luck")
    return epoch(run, number)
train_mnist.Run.epoch = failing
train_mnist.main()
"""

# train_mnist.py that says which batch it trains on.
NOTES = """
import sys, train_mnist
train = train_mnist.Run.train
def noted(run, images, labels):
    print("batch", images.sum().item(), file=sys.stderr)
    return train(run, images, labels)
train_mnist.Run.train = noted
train_mnist.main()
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return digits.write(tmp_path_factory.mktemp("digits") / "squares", digits.files())


@pytest.fixture
def run(folder, tmp_path):
    """A small run of train_mnist.py: run(name, flags...) -> the folder that it wrote, and its ranks."""

    def start(name, *arguments, how=succeed, program=MNIST, **options):
        path = tmp_path / name
        return path, how(*SMALL, "--data", folder, "--run-dir", path, *arguments, program=program, **options)

    return start


def last_line(rank):
    return rank.stderr.strip().splitlines()[-1]


def batches(folder, world_size, part, epoch=1, **knobs):
    """Batches of every rank, as lists of images; an image is known by its bytes."""
    config, found = Config(**{"batch_size": 12, "eval_batch_size": 5, **knobs}), []
    for rank in range(world_size):
        pair = loaders(load(str(folder)), config, rank, world_size, SimpleNamespace(type="cpu"))
        pair[0].sampler.set_epoch(epoch)
        loader = pair[("train", "test").index(part)]
        found.append([[image.numpy().tobytes() for image in images] for images, _ in loader])
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_test_image_counts_once(folder, world_size):
    seen = [image for rank in batches(folder, world_size, "test") for batch in rank for image in batch]
    assert len(seen) == len(set(seen)) == digits.TEST


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_batch_of_several_ranks_is_the_batch_of_one(folder, world_size):
    (alone,) = batches(folder, 1, "train")
    apart = batches(folder, world_size, "train")
    assert [len(rank) for rank in apart] == [len(alone)] * world_size == [STEPS] * world_size
    for step, batch in enumerate(alone):
        assert sorted(batch) == sorted(image for rank in apart for image in rank[step])
    seen = [image for batch in alone for image in batch]
    assert len(set(seen)) == len(seen) == digits.TRAIN - digits.TRAIN % 12


def test_every_epoch_has_an_order_of_its_own_and_leaves_out_other_images(folder):
    first, second = (batches(folder, 1, "train", epoch)[0] for epoch in (1, 2))
    assert first == batches(folder, 1, "train", 1)[0]
    assert first != second
    assert {image for batch in first for image in batch} != {image for batch in second for image in batch}
    assert first != batches(folder, 1, "train", 1, seed=1)[0]


def test_images_are_normalised(folder):
    """By the mean and the deviation of MNIST's pixels, 33.3 and 78.6 of 255, as they are known."""
    squares = load(str(folder))
    images, labels = Images(squares, "train").__getitems__([0, 1])
    pixels = torch.tensor(list(squares.images("train")[: 2 * 28 * 28])).view(2, 1, 28, 28)
    torch.testing.assert_close(images, (pixels - 33.3184) / 78.5675, rtol=0, atol=1e-3)
    assert labels.tolist() == list(squares.labels("train")[:2])


def test_a_run_tells_its_sampler_the_epoch(run):
    _, (rank,) = run("notes", "--epochs", 2, program=NOTES)
    noted = [line for line in rank.stderr.splitlines() if line.startswith("batch ")]
    assert len(noted) == 2 * STEPS
    assert set(noted[:STEPS]) != set(noted[STEPS:])


def test_two_ranks_learn_what_one_process_does(run):
    alone, _ = run("alone", "--epochs", 3)
    apart, _ = run("apart", "--epochs", 3, world_size=2)
    one, two = metrics(alone), metrics(apart)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, 3 * STEPS + 1))
    assert [line["train_loss"] for line in two] == pytest.approx([line["train_loss"] for line in one], abs=1e-3)
    for name in ("test_loss", "test_accuracy"):
        assert two[-1][name] == pytest.approx(one[-1][name], abs=1e-3)
    assert one[0]["train_loss"] - one[-1]["train_loss"] > 1, "too little happens in this run to compare"
    assert one[-1]["test_accuracy"] > 0.9


def test_a_resumed_run_equals_an_uninterrupted_one(run):
    flags = ("--epochs", 4, "--resume", "auto")
    whole, _ = run("whole", *flags, world_size=2)
    broken, ranks = run("broken", *flags, program=FAILS.format(epoch=4), how=train, world_size=2)
    assert "out of luck" in ranks[1].stderr
    assert all(rank.code for rank in ranks)
    newest = broken / "epoch-3.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    _, ranks = run("broken", *flags, world_size=2)
    assert f"passed over: {newest} is no checkpoint of train_mnist.py" in ranks[0].stdout
    assert "resumed after epoch 2" in ranks[0].stdout
    names = ("step", "epoch", "train_loss", "test_loss", "test_accuracy")
    lines = [[[line[name] for name in names] for line in metrics(each)] for each in (whole, broken)]
    assert lines[0] == lines[1]
    expected, found = (torch.load(each / "epoch-4.pt") for each in (whole, broken))
    for name, tensor in expected["model"].items():
        assert torch.equal(tensor, found["model"][name]), f"{name} differs after a resume"

    again, (ended,) = run("again", "--epochs", 4, "--resume", whole / "epoch-4.pt")
    assert json.loads((again / "summary.json").read_text())["test_accuracy"] == lines[0][-1][-1]
    assert "resumed after epoch 4" in ended.stdout


def measured(data_folder, file):
    """The mean loss and the accuracy of a checkpoint's model on the test set, all at once."""
    network, squares = build(0), load(str(data_folder))
    network.load_state_dict(torch.load(file)["model"])
    images, labels = Images(squares, "test").__getitems__(list(range(digits.TEST)))
    with torch.no_grad():
        logits = network(images)
    right = (logits.max(1).indices == labels).sum().item()
    return torch.nn.functional.cross_entropy(logits, labels).item(), right / digits.TEST


def test_what_a_run_leaves(run, request):
    folder, ranks = run("run", "--epochs", 2, "--log-every", 10, world_size=2)
    records = [rank.record() for rank in ranks]
    assert [(each["rank"], each["world_size"], each["local_rank"]) for each in records] == [(0, 2, 0), (1, 2, 1)]
    assert records[1]["shard"] == "6 of the 12 images of a batch"
    assert ranks[1].stdout.count("\n") == 1, "only rank 0 says more than its record"
    assert "squares: 203 images to train on, 37 to test" in ranks[0].stdout
    assert "an epoch: 16 steps, 11 images left out" in ranks[0].stdout
    lines = metrics(folder)
    assert [(line["epoch"], line["step"], line["test_loss"] is None) for line in lines] == [
        (1, 10, True),
        (1, 16, False),
        (2, 20, True),
        (2, 30, True),
        (2, 32, False),
    ]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["placement"] == records
    assert summary["test_accuracy"] == lines[-1]["test_accuracy"]
    loss, accuracy = measured(request.getfixturevalue("folder"), folder / "epoch-2.pt")
    assert summary["test_accuracy"] == accuracy
    assert summary["test_loss"] == pytest.approx(loss, rel=0.01), "logarithms of numbers near 1: few digits are right"
    assert f"test accuracy {summary['test_accuracy']:.2%}" in ranks[0].stdout
    assert summary["data"]["name"] == "squares"
    files = ["epoch-1.pt", "epoch-2.pt", "metrics.jsonl", "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    run("run", "--epochs", 1)
    assert sorted(path.name for path in folder.iterdir()) == [files[0], *files[2:]], "of another run"


def test_figures_of_two_ranks(tmp_path, monkeypatch):
    """Each does 6 images in 2 s."""
    monkeypatch.setattr("mnist.journal.all_reduce", lambda tensor, kind: 2 * tensor)
    journal = DigitsJournal(tmp_path, Config(), write=True, first_step=0, steps=1, device=torch.device("cpu"))
    journal.stepped(loss=0.5, images=6, seconds=2.0)
    journal.log(step=1, epoch=1)
    (line,) = metrics(tmp_path)
    assert (line["images_per_s"], line["train_loss"]) == (6, 0.5)
    assert journal.figures()["images_per_s"] == 6


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def half(content, file):
        file.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(tmp_path, 1, Config(), SimpleNamespace(sha256=str))
    assert not (tmp_path / "epoch-1.pt").exists()


def test_bf16_learns_too_or_is_refused(run):
    """Which of the two depends on the CPU; a rank that just dies does neither."""
    folder, (rank,) = run("bf16", "--epochs", 3, "--amp", "bf16", how=train)
    if rank.code:
        assert re.fullmatch(
            r"train_mnist.py: error: --amp bf16: torch .* on this CPU, .*; use --amp off", last_line(rank)
        )
    else:
        assert "amp bf16" in rank.stdout
        assert metrics(folder)[-1]["test_accuracy"] > 0.9


@pytest.fixture
def python_that(tmp_path, monkeypatch):
    """Make a shell script the Python of new processes, as the trial of a precision meets it on other CPUs."""

    def become(script):
        (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "python").chmod(0o755)
        monkeypatch.setattr("sys.executable", str(tmp_path / "python"))

    return become


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("kill -ILL $$", "it was ended by SIGILL"),
        ("echo Traceback >&2; echo 'RuntimeError: no primitive' >&2; exit 1", "RuntimeError: no primitive"),
    ],
)
def test_what_becomes_of_the_trial_on_a_cpu_is_told_in_a_line(python_that, script, why):
    python_that(script)
    with pytest.raises(AmpError, match=f"^--amp bf16: torch cannot train in it on this CPU, {why}; use --amp off$"):
        choose_amp("bf16", "cpu", (6, 5))


def test_a_cpu_is_tried_on_both_batches(python_that, tmp_path):
    python_that(f'echo "$2" >{tmp_path}/program')
    assert choose_amp("bf16", "cpu", (6, 5)) == "bf16"
    assert "('bf16', images) for images in [6, 5]" in (tmp_path / "program").read_text()


def test_the_precision_of_a_cpu_is_not_guessed(python_that):
    """Whatever it says that it can do: nothing is tried, and nothing fails, unless it was asked for."""
    python_that("exit 1")
    for wanted in ("auto", "off"):
        assert choose_amp(wanted, "cpu", (6, 5)) == "off"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 with a scaled loss is for GPUs, and there is none here")
def test_fp16_learns_too_and_keeps_its_scale(run):
    flags = ("--epochs", 3, "--amp", "auto", "--backend", "nccl")
    folder, (rank,) = run("fp16", *flags)
    assert "on cuda, amp fp16" in rank.stdout
    assert metrics(folder)[-1]["test_accuracy"] > 0.9
    assert torch.load(folder / "epoch-3.pt", map_location="cpu")["scaler"]["scale"] > 0
    resumed, _ = run("resumed", *flags, "--resume", folder / "epoch-2.pt")
    lines = [line["train_loss"] for line in metrics(folder)[2 * STEPS :]]
    assert [line["train_loss"] for line in metrics(resumed)] == pytest.approx(lines, abs=1e-2)


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "fp16"), ("off", "off"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_choice_of_precision_on_a_gpu(python_that, wanted, chosen):
    python_that("exit 1")
    assert choose_amp(wanted, "cuda", (6, 5)) == chosen


def test_fp16_on_a_cpu_is_refused():
    with pytest.raises(AmpError, match="--amp fp16 is for GPUs, and this rank computes on a CPU: use --amp bf16"):
        choose_amp("fp16", "cpu", (6, 5))


@pytest.fixture
def refused(folder, monkeypatch, capsys):
    """What train_mnist.py says, in this process, when it refuses before ranks meet: refused(world_size, flags...)."""

    def start(world_size, *flags):
        environ = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "::1",
            "MASTER_PORT": "9",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        small = [*SMALL, "--data", str(folder), "--timeout=1"]  # what is not refused waits so long for the other ranks
        monkeypatch.setattr("sys.argv", ["train_mnist.py", *small, *map(str, flags)])
        with pytest.raises(SystemExit) as ended:
            train_mnist.main()
        assert capsys.readouterr().out == "", "a rank that is refused has no record"
        return ended.value.code

    return start


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", 13], "--batch-size 13 is not a multiple of the 2 ranks"),
        (["--batch-size", 204], "--batch-size 204 is more than the 203 images"),
        (["--data", "/no/such"], "cannot read /no/such/train-images-idx3-ubyte"),
        (["--resume", "/no/such"], "cannot read the checkpoint /no/such"),
        (["--warmup", 1], "--warmup must be between 0 and 1"),
        (["--epochs", 0], "--epochs must be at least 1, got 0"),
    ],
)
def test_mistakes(refused, flags, message):
    said = refused(2, *flags)
    assert said.startswith("train_mnist.py: error: ")
    assert message in said


def test_fp16_without_a_gpu_ends_in_a_line(run):
    _, (rank,) = run("run", "--amp", "fp16", "--backend", "gloo", how=train)
    assert rank.code == 1
    assert last_line(rank).startswith("train_mnist.py: error: --amp fp16 is for GPUs")
    assert "Traceback" not in rank.stderr


def test_checkpoints_that_do_not_fit(run, refused, tmp_path):
    folder, _ = run("run", "--epochs", 1)
    file = folder / "epoch-1.pt"
    assert "has epochs 1, but this run has 2" in refused(2, "--epochs", 2, "--resume", file)
    more = digits.write(tmp_path / "more", digits.files(train=digits.TRAIN + 1))
    assert "was trained on other data than more" in refused(2, "--epochs", 1, "--data", more, "--resume", file)
