"""`make train CONTAINER=IMAGE`: which images are pushed and as what, and clusters that run no containers."""

import io

import pytest
from rich.console import Console

from slurmbed.cluster import transfer
from slurmbed.cluster.settings import Choices, Settings
from slurmbed.course import container
from slurmbed.errors import CommandError, UsageError
from slurmbed.process import Result


class StandIn:
    """A cluster that was made with these choices, or, without, is still to be made."""

    name = "here"

    def __init__(self, **choices: object):
        self.made = Choices(**choices)
        self.settings = Settings(name="here", cpus=2)
        self.snapshot = type("Snapshot", (), {"containers": ["login"] if choices else []})

    def choices(self) -> Choices:
        return self.made


@pytest.fixture
def docker(monkeypatch):
    """A stand-in for the docker command: docker(image it has, ...) -> what it was told to change."""

    def having(*images: str, broken: str = "") -> list[str]:
        told = []

        def run(argv, **_):
            if argv[1] == "image":
                return Result(tuple(argv), int(argv[-1] not in images), "", "")
            told.append(" ".join(argv[1:]))
            return Result(tuple(argv), int(argv[1] == broken), "", "")

        for module in (container, transfer):
            monkeypatch.setattr(module, "run", run)
        return told

    return having


def provided(image: str) -> tuple[str, str]:
    """The image's name in a cluster whose registry has the port 5000, and what the user is told."""
    screen = Console(file=io.StringIO())
    name = container.provide(StandIn(containers=True, registry_port=5000), screen, image)
    return name, screen.file.getvalue()


def test_an_image_of_docker_is_pushed_and_has_no_second_name_afterwards(docker):
    told = docker("torch:2")
    assert provided("torch:2")[0] == "localhost:5000/torch:2"
    assert told == ["tag torch:2 localhost:5000/torch:2", "push localhost:5000/torch:2", "rmi localhost:5000/torch:2"]


def test_an_image_that_the_user_named_after_the_registry_keeps_that_name(docker):
    told = docker("localhost:5000/torch")
    assert provided("localhost:5000/torch")[0] == "localhost:5000/torch"
    assert told == ["push localhost:5000/torch"]


def test_the_second_name_goes_where_the_push_fails_too(docker):
    told = docker("torch", broken="push")
    with pytest.raises(CommandError, match="docker push"):
        provided("torch")
    assert told[-1] == "rmi localhost:5000/torch"


@pytest.mark.parametrize("image", ["registry:5000/torch", "images/torch.sqsh", "docker-archive:torch.tar", "pytroch"])
def test_what_docker_does_not_have_is_left_to_the_nodes(docker, image):
    told = docker("torch")
    name, said = provided(image)
    assert name == image
    assert f"{image}, which Docker on this machine does not have" in said
    assert told == []


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("debian", "localhost:5001/debian"),
        ("alice/torch:1.0", "localhost:5001/alice/torch:1.0"),
        ("nvcr.io/nvidia/pytorch:24.11-py3", "localhost:5001/nvidia/pytorch:24.11-py3"),
        ("localhost:5001/torch:2", "localhost:5001/torch:2"),
        ("localhost:5000/of/another", "localhost:5001/of/another"),
        (f"debian@sha256:{'a' * 64}", f"localhost:5001/debian:{'a' * 64}"),
    ],
)
def test_names_in_the_registry(image, name):
    assert container.name_in_registry(image, "localhost:5001") == name


def test_a_cluster_that_is_still_to_be_made_gets_containers():
    cluster = StandIn()
    container.want_containers(cluster)
    assert (cluster.settings.containers, cluster.settings.cpus) == (True, 2)


def test_a_cluster_that_runs_them_is_used_as_it_is_and_one_that_does_not_is_left_alone():
    cluster = StandIn(containers=True)
    container.want_containers(cluster)
    assert cluster.settings.containers is None
    with pytest.raises(UsageError, match=r"here cannot run in containers(.|\n)*make up NAME=here CONTAINERS=1"):
        container.want_containers(StandIn(flavor="full"))
