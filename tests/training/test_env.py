"""The environment of launchers and of Slurm, read into ranks."""

import os
import re
import time
from types import SimpleNamespace

import pytest
import torch

from gpt.config import Config
from ranks import environment, rendezvous

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "node-2",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "20007",
}


def test_nothing_is_one_process():
    read = environment.read({})
    assert (read.rank, read.world_size, read.local_rank, read.job_id) == (0, 1, 0, None)


def test_torchrun():
    read = environment.read(TORCHRUN)
    assert (read.rank, read.world_size, read.local_rank) == (3, 4, 1)
    assert (read.master_addr, read.master_port) == ("node-1", 29500)


def test_srun():
    read = environment.read(SRUN)
    assert (read.rank, read.world_size, read.local_rank) == (1, 2, 0)
    record = read.record("heads 2-3 of 4")
    assert record["slurmd_nodename"] == "node-2"
    assert record["job_id"] == "7"
    assert record["shard"] == "heads 2-3 of 4"


def test_torchrun_inside_srun():
    assert environment.read(SRUN | TORCHRUN).rank == 3


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"RANK": "4"}, "rank 4 is not in a world of 4"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 is not in a world of 4"),
        (TORCHRUN | {"WORLD_SIZE": "four"}, "WORLD_SIZE must be a number, got 'four'"),
        ({"RANK": "0"}, "WORLD_SIZE is not set, but torchrun needs it"),
        (SRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set: 2 ranks"),
        ({k: v for k, v in SRUN.items() if k != "MASTER_PORT"}, "MASTER_PORT is not set"),
        ({k: v for k, v in SRUN.items() if k != "SLURM_NTASKS"}, "SLURM_NTASKS is not set, but srun needs it"),
        ({k: v for k, v in SRUN.items() if k != "SLURM_STEP_ID"}, "2 tasks, but 1 process was started, without srun"),
    ],
)
def test_mistakes(environ, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        environment.read(environ)


@pytest.mark.parametrize(
    ("wanted", "gpus", "nccl", "backend"),
    [
        ("auto", ["a", "b"], True, "nccl"),
        ("nccl", ["a", "b"], True, "nccl"),
        ("gloo", ["a", "b"], True, "gloo"),
        ("auto", ["a", ""], True, "gloo"),
        ("auto", ["a", "a"], True, "gloo"),
        ("auto", ["a", "b"], False, "gloo"),
        ("auto", [""], False, "gloo"),
    ],
)
def test_auto_is_nccl_only_where_every_rank_has_a_gpu_of_its_own(wanted, gpus, nccl, backend):
    assert rendezvous.choose_backend(wanted, gpus, nccl) == backend


@pytest.mark.parametrize(
    ("gpus", "nccl", "message"),
    [
        (["a", ""], True, "rank 1 sees none"),
        (["a", "b", "a"], True, "ranks 0 and 2 share one"),
        (["a", "b"], False, "no NCCL"),
    ],
)
def test_nccl_that_cannot_be_had(gpus, nccl, message):
    with pytest.raises(rendezvous.BackendError, match=message):
        rendezvous.choose_backend("nccl", gpus, nccl)


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(4, [0, 1, 2, 3]), (1, [0, 0, 0, 0])],
    ids=["torchrun shows all GPUs of a node", "Slurm shows each rank its own"],
)
def test_each_rank_of_a_node_takes_a_gpu_of_its_own(monkeypatch, visible, chosen):
    """On a machine whose GPUs are made up."""
    made_current = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"GPU-{number}"))
    devices = [rendezvous.device_of("cpu:gloo,cuda:nccl", local_rank) for local_rank in range(4)]
    assert devices == made_current == [torch.device("cuda", number) for number in chosen]
    assert [rendezvous.own_gpu(local_rank) for local_rank in range(4)] == [f"GPU-{number}" for number in chosen]
    assert rendezvous.device_of("gloo", 1) == torch.device("cpu")


@pytest.mark.parametrize(
    ("environ", "flags", "begins"),
    [
        (SRUN, {}, True),
        (SRUN, {"resume": "auto"}, True),
        (SRUN | {"SLURM_STEP_ID": "1"}, {"resume": "auto"}, False),
        (SRUN | {"SLURM_RESTART_COUNT": "1"}, {"resume": "auto"}, False),
        (SRUN, {"resume": "runs/3/checkpoints/step-000010.json"}, False),
        (SRUN, {"run_dir": "mine", "resume": "auto"}, False),
        ({}, {"resume": "auto"}, False),
    ],
)
def test_a_job_begins_unless_it_was_queued_again_or_is_told_what_to_resume(environ, flags, begins):
    assert environment.begins(environment.read(environ), Config(**flags)) == begins


@pytest.mark.parametrize(("age", "begins"), [(5, False), (500, True)])
def test_a_run_whose_ranks_were_started_again_goes_on(tmp_path, monkeypatch, age, begins):
    """What is younger than the job is the job's own; what is older was left by another one."""
    monkeypatch.setattr(Config, "run_path", lambda self: tmp_path)
    os.utime(tmp_path, (time.time() - age,) * 2)
    read = environment.read(SRUN | {"SLURM_JOB_START_TIME": str(int(time.time()) - 100)})
    assert environment.begins(read, Config(resume="auto")) == begins
