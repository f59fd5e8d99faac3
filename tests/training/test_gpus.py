"""GPUs: what a machine without any can show with a made-up one, and on a machine with one the runs themselves.

One GPU has room for one rank of NCCL, so the runs have a world of one: the same code, with nobody to wait for.
"""

import json
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

import processes
import train
from gpt.config import Config
from parallel import STRATEGIES, pp_stage
from processes import TIMEOUT, metrics
from ranks import communication
from small_runs import QUICK

REAL = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine")


@pytest.fixture
def made_up_gpu(monkeypatch):
    """Its events are 250 ms apart."""
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(communication, "backend", lambda group=None, device_type=None: "nccl")
    monkeypatch.setattr(communication, "marked", lambda *_: nullcontext())
    for name in ("calls", "seconds", "carried"):
        monkeypatch.setattr(communication, name, type(communication.calls)())


def test_the_time_of_a_collective_on_a_gpu_is_that_of_its_events(made_up_gpu):
    with communication.counted("forward"):
        pass
    assert communication.seconds == {}
    communication.settle()
    communication.settle()
    assert communication.seconds == {"forward": 0.25}
    assert communication.carried == {"nccl": 1}


def test_with_nccl_a_pipeline_leaves_its_messages_to_the_schedule(made_up_gpu, monkeypatch):
    """Which starts what goes to a rank and what comes from it together: batch_isend_irecv."""
    monkeypatch.setattr(pp_stage, "backend", lambda group, device_type: {"cuda": "nccl", "cpu": "gloo"}[device_type])
    monkeypatch.setattr(PipelineStage, "__init__", lambda stage, *arguments: setattr(stage, "device", arguments[-1]))
    stage = pp_stage.Stage(None, 0, 2, torch.device("cuda"))
    sent, received = [object()], [object()]
    assert stage.send(sent, "forward") is sent
    assert stage.receive(received, "backward") is received
    stage.over()
    stage.over()
    communication.settle()
    assert communication.calls == {"forward": 1, "backward": 1}
    assert communication.seconds == {"forward": 0.25}


@pytest.mark.parametrize(
    ("flags", "device", "found"),
    [({}, "cuda", "bf16"), ({"amp": "off"}, "cuda", "off"), ({"dtype": "float64"}, "cuda", "off"), ({}, "cpu", "off")],
)
def test_a_gpu_multiplies_in_bf16_unless_told_otherwise(made_up_gpu, flags, device, found):
    assert train.precision(Config(**flags), torch.device(device)) == found


def test_a_gpu_without_bf16_does_without(made_up_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert train.precision(Config(), torch.device("cuda")) == "off"


@pytest.mark.parametrize(("amp", "seen"), [("bf16", torch.bfloat16), ("off", None)])
def test_steps_and_evaluations_multiply_in_bf16(amp, seen):
    """On a CPU, but nothing is multiplied: some builds of oneDNN end with SIGILL in bf16 there."""
    found = []

    def loss(model, tokens, targets, count, **_):
        found.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return torch.zeros(())

    batch = torch.zeros(2, 2, 4)
    trainer = train.Trainer.__new__(train.Trainer)
    trainer.config, trainer.device, trainer.model, trainer.amp = Config(accumulate=2), torch.device("cpu"), None, amp
    trainer.batches = SimpleNamespace(validation_batches=lambda: [batch])
    trainer.strategy = SimpleNamespace(
        local_batch=lambda model, *each: each, backward=loss, mean_loss=loss, whole_loss=lambda model, loss: loss
    )
    trainer.gradients(*batch)
    trainer.evaluate()
    assert found == [seen] * 3


def test_ranks_of_nccl_compute_and_sum_on_their_gpu(monkeypatch):
    """Also where sockets were asked for, which carry what is on a CPU."""
    monkeypatch.setattr(communication.settings, "all_reduce", "socket")
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    gpu, cpu = torch.device("cuda", 3), torch.device("cpu")
    assert communication.own_device() == gpu
    assert [communication.transport_of(device) for device in (gpu, cpu)] == ["nccl", "socket"]
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:gloo")
    assert communication.own_device() == cpu


def test_bf16_on_a_cpu_is_refused(run):
    _, (rank,) = run("run", "--amp", "bf16", how=processes.train)
    assert rank.code == 1
    assert "train.py: error: --amp bf16 is for float32 on a GPU, and this is float32 on cpu\n" in rank.stderr


FLAGS = (*QUICK, "--steps", 10, "--eval-every", 5)


def from_a_shell(folder, text, *flags):
    """train.py as a process of its own: one that was forked could not use a GPU. Returns what it printed."""
    words = map(str, (train.__file__, *FLAGS, "--text", text, "--run-dir", folder, *flags))
    ended = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def on_cpu(text_file, tmp_path_factory):
    """The lines of metrics.jsonl of one process on the CPU."""
    folder = tmp_path_factory.mktemp("cpu")
    assert "on cpu, amp off" in from_a_shell(folder, text_file, "--backend", "gloo")
    return metrics(folder)


def on_gpu(folder, text, parallel, *flags):
    printed = from_a_shell(folder, text, "--parallel", parallel, "--tp-size", 1, "--backend", "nccl", *flags)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["memory"][0]["peak"] > summary["memory"][0]["held"] > 0
    assert parallel == "none" or "nccl" in summary["transports"]
    assert 0 <= summary["communication_share"] < 1
    return printed


@REAL
@pytest.mark.parametrize("parallel", STRATEGIES)
def test_a_gpu_trains_as_a_cpu_does(on_cpu, text_file, tmp_path, parallel):
    assert "on cuda, amp off" in on_gpu(tmp_path, text_file, parallel, "--amp", "off")
    for found, same in zip(metrics(tmp_path), on_cpu, strict=True):
        assert found["train_loss"] == pytest.approx(same["train_loss"], abs=1e-3)


@REAL
@pytest.mark.parametrize("parallel", STRATEGIES)
def test_a_gpu_trains_in_bf16(on_cpu, text_file, tmp_path, parallel):
    assert "on cuda, amp bf16" in on_gpu(tmp_path, text_file, parallel, "--profile-step", 3)
    assert metrics(tmp_path)[-1]["val_loss"] == pytest.approx(on_cpu[-1]["val_loss"], abs=0.05)
    timeline = json.loads((tmp_path / "timeline.json").read_text())
    assert "compute" in {kind for kind, _, _ in timeline["ranks"][0]["spans"]}


@REAL
def test_a_run_on_a_gpu_goes_on_from_a_checkpoint(on_cpu, text_file, tmp_path):
    flags, first, second = ("--amp", "off", "--checkpoint-every", 8), tmp_path / "first", tmp_path / "second"
    on_gpu(first, text_file, "ddp", *flags)
    on_gpu(second, text_file, "tp", *flags, "--resume", first / "checkpoints" / "step-000008.json")
    assert metrics(second)[-1]["val_loss"] == pytest.approx(on_cpu[-1]["val_loss"], abs=1e-3)
