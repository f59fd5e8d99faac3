"""GPUs of nodes: the words, the host's shared out, refusals that say how many there are."""

from dataclasses import replace

import pytest

from slurmbed import doctor, gpus
from slurmbed.compose import Slice
from slurmbed.errors import UsageError
from slurmbed.plan import Settings, with_gpus
from slurmbed.run import Result

NEW = Slice(1, 512, 1, 512)
TWO_GPUS = "GPU 0: NVIDIA H200 (UUID: GPU-11)\nGPU 1: NVIDIA H200 (UUID: GPU-22)\n"


@pytest.mark.parametrize(
    ("text", "word"), [("0", ""), ("2", "2"), ("02", "2"), ("emulated:2", "emulated:2"), ("emulated:0", "")]
)
def test_words(text, word):
    assert gpus.canonical(text) == word


@pytest.mark.parametrize("text", ["all", "-1", "17", "emulated", "emulated:", "emulated:17", "h200:1", "1:1"])
def test_what_is_no_number_of_gpus(text):
    with pytest.raises(UsageError, match=f"GPUS={text}: not a number from 0 to 16(.|\n)*GPUS=emulated:2"):
        gpus.canonical(text)


@pytest.fixture
def machine(monkeypatch):
    """Make this a machine with these programs, ``nvidia-smi -L`` output and runtimes of Docker."""

    def machine(programs: set[str], listing: str = "", runtimes: str = '{"runc":{}}') -> None:
        def answer(argv, **_):
            return Result(tuple(argv), 0, listing if argv[0] == "nvidia-smi" else runtimes, "")

        monkeypatch.setattr(gpus.shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(gpus, "run", answer)

    return machine


@pytest.mark.parametrize(
    ("programs", "runtimes"),
    [({"nvidia-smi"}, '{"nvidia":{},"runc":{}}'), ({"nvidia-smi", "nvidia-container-runtime-hook"}, '{"runc":{}}')],
)
def test_the_hosts_gpus(machine, programs, runtimes):
    machine(programs, TWO_GPUS, runtimes)
    assert gpus.on_host() == ["NVIDIA H200", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("programs", "listing", "reason"),
    [
        (set(), "", "nvidia-smi not found(.|\n)*GPUS=emulated:2"),
        ({"nvidia-smi"}, "No devices found.\n", "names no GPU(.|\n)*No devices found(.|\n)*GPUS=emulated:2"),
        ({"nvidia-smi"}, TWO_GPUS, r"machine's GPUs \(2\)(.|\n)*install nvidia-container-toolkit"),
    ],
)
def test_a_host_that_cannot_give_gpus_says_what_to_do(machine, programs, listing, reason):
    machine(programs, listing)
    with pytest.raises(UsageError, match=reason):
        gpus.on_host()


def test_the_doctor_names_the_gpus_and_does_without(machine):
    machine({"nvidia-smi"}, TWO_GPUS, '{"nvidia":{}}')
    assert doctor.graphics() == "GPUs for nodes: NVIDIA H200, NVIDIA H200"
    machine(set())
    assert doctor.graphics() == "GPUs for nodes: no NVIDIA GPU on this machine (nvidia-smi not found)"


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(gpus, "on_host", lambda: ["NVIDIA H200"] * 4)


def test_no_gpu_goes_to_two_nodes(four):
    slices = with_gpus(Settings(gpus="2"), {}, NEW, 2)
    assert [part.gpu_ids for part in slices] == [("0", "1"), ("2", "3")]
    assert {part.gpus for part in slices} == {"2"}


def test_a_node_more_gets_what_is_free(four):
    kept = {1: replace(NEW, gpus="1", gpu_ids=("0",)), 2: replace(NEW, gpus="1", gpu_ids=("2",))}
    slices = with_gpus(Settings(), kept, NEW, 4)
    assert [part.gpu_ids for part in slices] == [("0",), ("2",), ("1",), ("3",)]
    with pytest.raises(UsageError, match="each of 3 new nodes is 3; the host has 4, 2 of them free"):
        with_gpus(Settings(), kept, NEW, 5)


def test_too_few_gpus_is_said_with_both_numbers(four):
    with pytest.raises(UsageError, match=r"each of 3 new nodes is 6; the host has 4\n(.|\n)*GPUS=emulated:2"):
        with_gpus(Settings(gpus="2"), {}, NEW, 3)


def test_emulated_gpus_and_none_take_nothing_of_the_host(monkeypatch):
    monkeypatch.setattr(gpus, "on_host", lambda: pytest.fail("the host was asked"))
    assert with_gpus(Settings(), {}, NEW, 2) == [NEW, NEW]
    assert {part.gpus for part in with_gpus(Settings(gpus="emulated:2"), {}, NEW, 200)} == {"emulated:2"}


@pytest.mark.parametrize(("asked", "there"), [("1", "emulated:1"), ("0", "1"), ("2", "")])
def test_gpus_are_chosen_once(asked, there):
    with pytest.raises(UsageError, match=f"GPUS={asked}: the nodes that are there were made with GPUS={there or 0}"):
        with_gpus(Settings(gpus=asked), {1: replace(NEW, gpus=there)}, NEW, 2)
