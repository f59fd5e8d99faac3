"""GPUs of nodes: how they are written, the host's shared out, refusals that say how many there are."""

import pytest

from slurmbed.cluster.host import Host
from slurmbed.errors import UsageError
from slurmbed.spec.gpus import NO_GPUS, Gpus, notice, parse_gpus
from slurmbed.spec.model import ClusterSpec
from slurmbed.spec.slices import Slice, plain_slices, slices_of_spec

TWO, FOUR = ("NVIDIA H200",) * 2, ("NVIDIA H200",) * 4


class Machine(Host):
    """A machine of 4 cores with these GPUs, which Docker can give to containers."""

    def __init__(self, *names: str):
        super().__init__(cpus=4, memory=8192, has_nvidia_runtime=True)
        object.__setattr__(self, "names", names)

    def gpu_names(self):
        return self.names


def shares(machine: Host, text: str, nodes: int, kept: dict[int, Slice] | None = None) -> list[tuple]:
    """(GPUs, nvidia-smi's numbers) of each node; no text where the user says nothing of GPUs."""
    slices = plain_slices(machine, nodes, kept or {}, cpus=4, memory=512, asked=Gpus.parse(text) if text else None)
    return [(str(part.gpus), part.gpu_ids) for part in slices]


def node(text: str, *gpu_ids: str) -> Slice:
    return Slice(cpus=4, memory=512, cpu_limit=4, memory_limit=768, gpus=Gpus.parse(text), gpu_ids=gpu_ids)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *(("0", "0"), ("2", "2"), ("02", "2"), ("emulated:2", "emulated:2"), ("emulated:0", "0")),
        *(("h100:8", "h100:8"), ("a100-sxm4-80gb:04", "a100-sxm4-80gb:4"), ("h100:0", "0")),
        *(("emulated:h100:08", "emulated:h100:8"), ("emulated:h100:0", "0")),
    ],
)
def test_each_form_is_read_and_written(text, written):
    assert str(Gpus.parse(text)) == written
    assert Gpus.model_validate_json(Gpus.parse(text).model_dump_json()) == Gpus.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("all", "-1", "17", "emulated", "emulated:", "emulated:17", "H200:1", "1:1", "a:b:1", ""),
        *("emulated:emulated:1", "h100:emulated:1", "emulated:h100:17"),
    ],
)
def test_what_is_no_number_of_gpus(text):
    with pytest.raises(ValueError, match=r"write 2, h100:8, emulated:2 or emulated:h100:8, at most 16"):
        Gpus.parse(text)


@pytest.mark.parametrize(
    ("text", "gres"),
    [("2", "gpu:2"), ("h100:8", "gpu:h100:8"), ("emulated:2", "gpu:emulated:2"), ("emulated:h100:8", "gpu:h100:8")],
)
def test_slurm_is_told_the_type_and_not_that_they_are_emulated(text, gres):
    assert Gpus.parse(text).gres == gres
    assert NO_GPUS.gres == ""
    assert not NO_GPUS


def test_names_from_nvidia_smi():
    listing = (
        "GPU 0: NVIDIA H200 (UUID: GPU-11)\n  MIG 1g.18gb Device 0: (UUID: MIG-5)\nGPU 1: NVIDIA A100 (UUID: GPU-2)\n"
    )
    assert parse_gpus(listing) == ["NVIDIA H200", "NVIDIA A100"]
    assert parse_gpus("No devices found.\n") == []


def test_where_there_is_no_gpu_a_number_means_emulated_ones():
    assert shares(Machine(), "8", 2) == [("emulated:8", ())] * 2
    said = "no NVIDIA GPU on this machine: 8 emulated GPUs for each node; programs compute on CPUs"
    assert notice(Gpus.parse("emulated:8"), ()) == said
    one = "no NVIDIA GPU on this machine: 1 emulated GPU of type h100 for each node of the group big"
    assert notice(Gpus.parse("emulated:h100:1"), (), "big").startswith(one)


def test_a_type_is_the_hosts_where_nvidia_smi_names_it_and_emulated_otherwise():
    assert shares(Machine(*TWO), "h200:1", 2) == [("h200:1", ("0",)), ("h200:1", ("1",))]
    assert shares(Machine(*TWO), "h100:8", 2) == [("emulated:h100:8", ())] * 2
    assert shares(Machine(*TWO), "h20:1", 2) == [("emulated:h20:1", ())] * 2
    assert notice(Gpus.parse("h200:1"), TWO) == notice(NO_GPUS, TWO) == ""
    said = "8 emulated GPUs of type h100 for each node; programs compute on CPUs"
    assert notice(Gpus.parse("emulated:h100:8"), TWO) == said


def test_a_type_that_the_host_has_can_be_emulated_and_stays_so():
    assert shares(Machine(*TWO), "emulated:h200:8", 2) == [("emulated:h200:8", ())] * 2
    assert node("emulated:h200:8").record == "CPUs=4 RealMemory=512 Gres=gpu:h200:8"
    assert shares(Machine(*TWO), "", 2, {1: node("emulated:h200:8")}) == [("emulated:h200:8", ())] * 2


def test_a_type_gives_only_gpus_of_that_type():
    mixed = Machine("NVIDIA A100", "NVIDIA H100", "NVIDIA H100")
    assert [gpu_ids for _, gpu_ids in shares(mixed, "h100:1", 2)] == [("1",), ("2",)]
    with pytest.raises(UsageError, match="2 new nodes is 2; the host has 2 of type h100, 1 of them free"):
        shares(mixed, "", 3, {1: node("h100:1", "1")})
    with pytest.raises(UsageError, match=r"the host has 1 of type a100\n(.|\n)*GPUS=emulated:a100:8"):
        shares(mixed, "a100:8", 1)


def test_no_gpu_goes_to_two_nodes():
    assert shares(Machine(*FOUR), "2", 2) == [("2", ("0", "1")), ("2", ("2", "3"))]


def test_a_new_node_gets_what_is_free():
    kept = {1: node("1", "0"), 2: node("1", "2")}
    assert [gpu_ids for _, gpu_ids in shares(Machine(*FOUR), "", 4, kept)] == [("0",), ("2",), ("1",), ("3",)]
    with pytest.raises(UsageError, match="each of 3 new nodes is 3; the host has 4, 2 of them free"):
        shares(Machine(*FOUR), "", 5, kept)


def test_a_node_of_a_file_gets_no_gpu_that_another_has():
    """Also of one with a higher number, which stayed when this one was removed."""
    spec = ClusterSpec.model_validate({"nodes": [{"name": "a", "count": 3, "memory": "1G", "gres": "gpu:1"}]})
    slices = slices_of_spec(spec, Machine(*FOUR), 3, {2: node("1", "0"), 3: node("1", "2")})
    assert [part.gpu_ids for part in slices] == [("1",), ("0",), ("2",)]


def test_too_few_gpus_is_said_with_both_numbers():
    with pytest.raises(UsageError, match=r"each of 3 new nodes is 6; the host has 4\n(.|\n)*GPUS=emulated:2"):
        shares(Machine(*FOUR), "2", 3)


def test_emulated_gpus_and_none_ask_nothing_of_the_host(monkeypatch):
    for name in ("gpu_names", "gpus"):
        monkeypatch.setattr(Machine, name, lambda self: pytest.fail("the host was asked"))
    machine = Machine()
    assert shares(machine, "", 2) == shares(machine, "0", 2) == [("0", ())] * 2
    assert set(shares(machine, "emulated:2", 16)) == {("emulated:2", ())}


@pytest.mark.parametrize(("asked", "there"), [("1", "emulated:1"), ("0", "1"), ("2", "0")])
def test_gpus_are_chosen_once(asked, there):
    with pytest.raises(UsageError, match=f"GPUS={asked}: the existing nodes were made with GPUS={there}"):
        shares(Machine(*FOUR), asked, 2, {1: node(there)})


def test_without_cpus_a_node_offers_one_for_each_gpu_also_when_the_cluster_grows():
    asked = Gpus.parse("8")
    slices = plain_slices(Machine(), 2, {}, asked=asked)
    assert {(part.cpus, part.cpu_limit, str(part.gpus)) for part in slices} == {(8, 4, "emulated:8")}
    kept = {1: slices[0].model_copy(update={"memory": 1024})}
    assert [part.cpus for part in plain_slices(Machine(), 2, kept)] == [8, 8]
    small = {1: slices[0].model_copy(update={"cpus": 1, "memory": 128})}
    assert len(plain_slices(Machine(), 48, small)) == 48  # 8 CPUs would want 512 MiB a node
