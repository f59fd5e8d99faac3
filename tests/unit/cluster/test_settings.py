"""What a user may say of a cluster: typed values, refused in a line each."""

import re
import subprocess
import sys

import pytest
from pydantic import ValidationError

from slurmbed.cluster.settings import FLAVORS, VERSIONS, Choices, Settings, checked
from slurmbed.errors import UsageError
from slurmbed.project import ROOT
from slurmbed.spec.gpus import Gpus

LAPTOP = str(ROOT / "clusters/laptop.yaml")


def test_text_becomes_values(tmp_path):
    settings = checked(
        {
            "nodes": "4",
            "memory": "2G",
            "gpus": "h100:8",
            "ssh_port": "2222",
            "flavor": "torch",
            "workspace": str(tmp_path),
        }
    )
    assert (settings.nodes, settings.memory, settings.ssh_port, settings.flavor) == (4, 2048, 2222, "torch")
    assert settings.gpus == Gpus(count=8, type="h100")
    assert settings.workspace == tmp_path


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        *(
            ({"nodes": text}, f"NODES={text}: not a whole number from 1 to 256")
            for text in ("0", "-1", "1.5", "257", "x")
        ),
        ({"cpus": "many"}, "CPUS=many: not a whole number from 1 to 1024"),
        ({"memory": "lots"}, "MEMORY=lots: 'lots' is not an amount of memory"),
        ({"slurm": "23.02"}, "SLURM=23.02: not known; choose one of 24.11, 26.05"),
        ({"flavor": "fat"}, "FLAVOR=fat: not known; choose one of slim, torch, full"),
        ({"gpus": "all"}, "GPUS=all: write 2, h100:8, emulated:2 or emulated:h100:8"),
        *(({"name": name}, f"NAME={name}: not a cluster name") for name in ("Big", "a b", "-x", "ü")),
        ({"name": "slurmbed-images"}, "NAME=slurmbed-images: the images are built under this name"),
        ({"workspace": "/no/such"}, "WORKSPACE=/no/such: not a folder"),
        ({"workspace": "/"}, "WORKSPACE=/: a cluster cannot share the whole machine"),
        ({"config": "/no/such"}, "CONFIG=/no/such: no such file"),
    ],
)
def test_what_is_refused_is_said_in_makes_words(values, reason):
    with pytest.raises(UsageError) as refused:
        checked(values)
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize("name", ["nodes", "cpus", "memory", "gpus"])
def test_a_configuration_file_and_options_that_say_the_same_are_refused(name):
    with pytest.raises(UsageError, match=f"cannot be combined with {name.upper()}"):
        checked({"config": LAPTOP, name: "2"})


def test_from_python_a_mistake_is_a_value_error():
    with pytest.raises(ValidationError, match="not a whole number from 1 to 256"):
        Settings(nodes=0)
    with pytest.raises(ValueError, match="node"):
        Settings(node=2)


def test_the_defaults_are_the_first_version_the_full_flavor_and_debians_torch():
    assert Choices().tag == f"{next(iter(VERSIONS))}-full"
    assert Choices(torch="pypi", flavor="torch").tag == f"{next(iter(VERSIONS))}-torch-pypi"
    assert Choices(torch="pypi", flavor="slim").tag == f"{next(iter(VERSIONS))}-slim", "it has no torch"


def test_the_dockerfile_has_a_stage_for_each_flavor():
    stages = re.findall(r"^FROM \S+ AS node-(\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == list(FLAVORS)


def test_a_package_without_its_clone_makes_slim_nodes():
    program = (
        "from slurmbed import project; project.IS_CLONE = False; "
        "from slurmbed.cluster.settings import Choices; print(Choices(workspace='/').flavor)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "slim\n", done.stderr
