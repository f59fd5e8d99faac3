"""The overlay, and what docker-compose.yml must not hold."""

import re

import pytest

from slurmbed.compose import BASE_FILE, Container, Slice, overlay

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
