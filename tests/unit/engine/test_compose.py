"""The overlay, and what docker-compose.yml must not hold."""

import re
from dataclasses import replace

import pytest

from slurmbed.engine.compose import BASE_FILE, Container, Slice, overlay

ONE, TWO = Slice(1, 512, 1, 512), Slice(2, 1024, 1, 1024)


def test_nodes_beyond_the_file_extend_its_first():
    services = overlay([ONE, ONE, TWO])["services"]
    assert list(services) == ["node-1", "node-2", "node-3"]
    assert services["node-3"] == {
        "extends": {"file": str(BASE_FILE), "service": "node-1"},
        "hostname": "node-3",
        "environment": {"NODE_CPUS": "2", "NODE_MEMORY": "1024"},
        "cpus": 1,
        "mem_limit": "1024m",
    }
    assert "extends" not in services["node-2"]


def test_gpus_of_the_host_are_reserved_by_their_numbers():
    services = overlay([replace(ONE, gpus="2", gpu_ids=("2", "3"))] * 3)["services"]
    reserved = [{"driver": "nvidia", "device_ids": ["2", "3"], "capabilities": ["gpu"]}]
    for node in ("node-1", "node-2", "node-3"):
        assert services[node]["deploy"] == {"resources": {"reservations": {"devices": reserved}}}
        assert services[node]["environment"]["NODE_GRES"] == "gpu:2"
    assert services["slurmctld"] == {"environment": {"NODE_GRES": "gpu:2"}}


def test_emulated_gpus_are_device_files_and_take_no_capability():
    services = overlay([replace(ONE, gpus="emulated:2")])["services"]
    assert services["node-1"]["devices"] == ["/dev/null:/dev/emulated-gpu0", "/dev/null:/dev/emulated-gpu1"]
    assert services["node-1"]["environment"]["NODE_GRES"] == "gpu:emulated:2"
    assert not {"deploy", "cap_add"} & set(services["node-1"])


def test_one_node_leaves_the_second_out():
    assert overlay([ONE])["services"]["node-2"] == {"profiles": ["left-out"]}


@pytest.mark.parametrize(
    ("service", "number"), [("node-12", 12), ("login", None), ("slurmdbd", None), ("node-x", None)]
)
def test_node_numbers(service, number):
    assert Container(service, "running", "Up").node_number == number


def test_nothing_is_privileged_or_named_or_open_to_the_network():
    text = BASE_FILE.read_text()
    assert "privileged" not in text
    assert "container_name" not in text
    published = re.findall(r'ports: \["([^"]*)"', text)
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
