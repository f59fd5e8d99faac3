"""GPUs of nodes: the words, the host's shared out, refusals that say how many there are."""

from dataclasses import replace

import pytest

from slurmbed.cli import doctor
from slurmbed.cluster.host import Host
from slurmbed.cluster.plan import Settings, make_slices, with_gpus
from slurmbed.engine.compose import Compose, Container, Slice
from slurmbed.errors import UsageError
from slurmbed.process import Result
from slurmbed.spec import gpus

NEW = Slice(1, 512, 1, 512)
TWO_GPUS = "GPU 0: NVIDIA H200 (UUID: GPU-11)\nGPU 1: NVIDIA H200 (UUID: GPU-22)\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        *(("0", ""), ("2", "2"), ("02", "2"), ("emulated:2", "emulated:2"), ("emulated:0", "")),
        *(("h100:8", "h100:8"), ("a100-sxm4-80gb:04", "a100-sxm4-80gb:4"), ("h100:0", "")),
        *(("emulated:h100:08", "emulated:h100:8"), ("emulated:h100:0", "")),
    ],
)
def test_words(text, word):
    assert gpus.canonical(text) == word


@pytest.mark.parametrize(
    "text",
    [
        *("all", "-1", "17", "emulated", "emulated:", "emulated:17", "H200:1", "1:1", "a:b:1"),
        *("emulated:emulated:1", "h100:emulated:1", "emulated:h100:17"),
    ],
)
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


def test_without_the_container_toolkit_the_hosts_gpus_cannot_be_given(machine):
    machine({"nvidia-smi"}, TWO_GPUS)
    with pytest.raises(UsageError, match=r"machine's GPUs \(2\)(.|\n)*install nvidia-container-toolkit"):
        with_gpus(Settings(gpus="1"), {}, NEW, 1)


@pytest.mark.parametrize(("programs", "listing"), [(set(), ""), ({"nvidia-smi"}, "No devices found.\n")])
def test_where_there_is_no_gpu_a_number_means_emulated_ones(machine, programs, listing):
    machine(programs, listing)
    slices = with_gpus(Settings(gpus="8"), {}, NEW, 2)
    assert [(part.gpus, part.gpu_ids) for part in slices] == [("emulated:8", ())] * 2
    assert with_gpus(Settings(gpus="8"), dict(enumerate(slices, 1)), NEW, 2) == slices
    said = "no NVIDIA GPU on this machine: 8 emulated GPUs for each node; ranks compute on CPUs"
    assert gpus.notice("emulated:8") == said
    assert gpus.notice("emulated:h100:1") == said.replace("8 emulated GPUs", "1 emulated GPU of type h100")


def test_a_type_is_the_hosts_where_nvidia_smi_names_it_and_emulated_otherwise(machine):
    machine({"nvidia-smi"}, TWO_GPUS, '{"nvidia":{}}')
    of_host = with_gpus(Settings(gpus="h200:1"), {}, NEW, 2)
    assert [(part.gpus, part.gpu_ids) for part in of_host] == [("h200:1", ("0",)), ("h200:1", ("1",))]
    slices = with_gpus(Settings(gpus="h100:8"), {}, NEW, 2)
    assert [(part.gpus, part.gpu_ids) for part in slices] == [("emulated:h100:8", ())] * 2
    assert gpus.notice("h200:1") == gpus.notice("2") == gpus.notice("") == ""
    assert gpus.notice("emulated:h100:8") == "8 emulated GPUs of type h100 for each node; ranks compute on CPUs"


def test_a_type_that_the_host_has_can_be_emulated_and_stays_so(machine):
    machine({"nvidia-smi"}, TWO_GPUS)
    slices = with_gpus(Settings(gpus="emulated:h200:8"), {}, NEW, 2)
    assert {(part.gpus, part.gpu_ids) for part in slices} == {("emulated:h200:8", ())}
    assert slices[0].record == "CPUs=1 RealMemory=512 Gres=gpu:h200:8"
    grown = with_gpus(Settings(), {1: replace(NEW, gpus=gpus.from_gres("gpu:h200:8", ()))}, NEW, 2)
    assert grown == slices


@pytest.mark.parametrize("word", ["", "2", "h200:1", "emulated:2", "emulated:h200:8"])
def test_the_word_comes_back_from_slurms(word):
    gpu_ids = ("0", "1") if word in ("2", "h200:1") else ()
    assert gpus.from_gres(gpus.gres(word), gpu_ids) == word


def test_a_type_gives_only_gpus_of_that_type(machine):
    mixed = "".join(f"GPU {i}: NVIDIA {name} (UUID: GPU-{i})\n" for i, name in enumerate(("A100", "H100", "H100")))
    machine({"nvidia-smi"}, mixed, '{"nvidia":{}}')
    assert [part.gpu_ids for part in with_gpus(Settings(gpus="h100:1"), {}, NEW, 2)] == [("1",), ("2",)]
    kept = {1: replace(NEW, gpus="h100:1", gpu_ids=("1",))}
    with pytest.raises(UsageError, match="2 new nodes is 2; the host has 2 of type h100, 1 of them free"):
        with_gpus(Settings(), kept, NEW, 3)
    with pytest.raises(UsageError, match=r"the host has 1 of type a100\n(.|\n)*in name only: GPUS=emulated:a100:8"):
        with_gpus(Settings(gpus="a100:8"), {}, NEW, 1)


def test_without_cpus_a_node_offers_one_for_each_gpu_also_when_the_cluster_grows(machine, monkeypatch):
    machine(set())
    laptop = Host(cpus=4, memory=8192, free_disk=None)
    monkeypatch.setattr(Compose, "containers", lambda self: [])
    slices = make_slices(Settings(gpus="8"), Compose("none"), laptop, 2, None)
    assert {(part.cpus, part.cpu_limit, part.gpus) for part in slices} == {(8, 4, "emulated:8")}
    monkeypatch.setattr(Compose, "containers", lambda self: [Container("node-1", "running", "Up")])
    monkeypatch.setattr(Compose, "slice_of", lambda self, service: replace(slices[0], memory=1024))
    assert [part.cpus for part in make_slices(Settings(), Compose("none"), laptop, 2, None)] == [8, 8]
    monkeypatch.setattr(Compose, "slice_of", lambda self, service: replace(slices[0], cpus=1, memory=128))
    assert len(make_slices(Settings(), Compose("none"), laptop, 48, None)) == 48  # 8 CPUs would want 512 MiB a node


def test_the_doctor_names_the_gpus_and_does_without(machine):
    machine({"nvidia-smi"}, TWO_GPUS, '{"nvidia":{}}')
    assert doctor.graphics() == "GPUs for nodes: NVIDIA H200, NVIDIA H200"
    machine(set())
    assert doctor.graphics() == "GPUs for nodes: no NVIDIA GPU on this machine"


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(gpus, "listed", lambda: ["NVIDIA H200"] * 4)
    monkeypatch.setattr(gpus, "on_host", gpus.listed)


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
    with pytest.raises(UsageError, match="GPUS=emulated:8"):
        with_gpus(Settings(gpus="8"), {}, NEW, 1)


def test_emulated_gpus_and_none_take_nothing_of_the_host(monkeypatch):
    for name in ("listed", "on_host"):
        monkeypatch.setattr(gpus, name, lambda: pytest.fail("the host was asked"))
    assert with_gpus(Settings(), {}, NEW, 2) == [NEW, NEW]
    assert {part.gpus for part in with_gpus(Settings(gpus="emulated:2"), {}, NEW, 200)} == {"emulated:2"}


@pytest.mark.parametrize(("asked", "there"), [("1", "emulated:1"), ("0", "1"), ("2", "")])
def test_gpus_are_chosen_once(four, asked, there):
    with pytest.raises(UsageError, match=f"GPUS={asked}: the nodes that are there were made with GPUS={there or 0}"):
        with_gpus(Settings(gpus=asked), {1: replace(NEW, gpus=there)}, NEW, 2)


def test_gpus_are_counted_without_what_they_are_divided_into():
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-1a2b3c4d-0000-1111-2222-333344445555)\n"
    )
    assert gpus.parse_gpus(text) == ["NVIDIA A100-SXM4-40GB", "NVIDIA H200"]
    assert gpus.parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []
