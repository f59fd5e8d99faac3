"""What a cluster is to be, from what the user asks, what is there, and the host."""

from pathlib import Path

import pytest

from slurmbed.cluster import images
from slurmbed.cluster.host import Host
from slurmbed.cluster.plan import FILE_LABEL, Plan, choose_spec, make_plan
from slurmbed.cluster.settings import Choices, Settings
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.overlay import CLONE_LABEL, OURS
from slurmbed.engine.snapshot import Container, Named, Snapshot
from slurmbed.errors import UsageError
from slurmbed.project import ROOT
from slurmbed.spec.load import load
from slurmbed.spec.model import ClusterSpec

INFO = EngineInfo("ID", 8, 8192, "/var/lib/docker", True, True, ("runc",))
LAPTOP = Host(cpus=8, memory=8192)
NOTHING = Snapshot("c", INFO, (), (), {})
CAMPUS = ROOT / "clusters/campus.yaml"


def plan(settings: Settings | None = None, snapshot: Snapshot = NOTHING, spec: ClusterSpec | None = None) -> Plan:
    return make_plan(settings or Settings(name="c"), spec, snapshot, LAPTOP)


def made(made_with: Plan, *, state: str = "running", stale: str = "") -> Snapshot:
    """The engine as it is once a plan was carried out; the service ``stale`` with another label."""
    names = {image: f"sha256:{image}" for kind in images.KINDS if (image := images.image(kind, made_with.choices))}
    containers = []
    for service, body in made_with.overlay["services"].items():
        if "profiles" in body:
            continue
        labels = {key: text.replace("$$", "$") for key, text in body["labels"].items()}
        labels |= {OURS: "cluster", CLONE_LABEL: str(ROOT)}
        if service == stale:
            labels[FILE_LABEL] = "other"
        image = names[images.image("node", made_with.choices)]
        containers.append(Container(f"c-{service}-1", "c", service, state, "Up", image, labels, {}))
    return Snapshot("c", INFO, tuple(containers), (), names)


def test_a_new_cluster_has_two_nodes_and_the_host_shared_out():
    new = plan()
    assert [(part.cpus, part.memory) for part in new.slices] == [(4, 3072)] * 2
    assert not new.exists
    assert new.choices.slurm == "24.11"


def test_a_cluster_that_is_as_planned_needs_nothing():
    settings = Settings(name="c", nodes=3, gpus="emulated:2", slurm="26.05", ssh_port=2222)
    first = plan(settings)
    assert not first.is_met_by(NOTHING)
    assert first.is_met_by(made(first))
    again = plan(Settings(name="c"), made(first))
    assert (again.slices, again.choices) == (first.slices, first.choices), "what is not said stays as it is"
    assert again.is_met_by(made(first))


@pytest.mark.parametrize("stale", ["login", "slurmctld", "node-2"])
def test_a_container_that_was_made_otherwise_is_made_anew(stale):
    first = plan(Settings(name="c"))
    assert not first.is_met_by(made(first, stale=stale))


def test_no_folder_takes_the_place_of_a_users_home():
    spec = ClusterSpec.model_validate({"nodes": [{"name": "a"}], "users": [{"name": "ann"}]})
    home, inside = (Settings.model_construct(name="c", mount=(Path(path),)) for path in ("/home/ann", "/home/ann/work"))
    with pytest.raises(UsageError, match=r"/home/ann is the home of the cluster's user ann(.|\n)*share a folder in it"):
        plan(home, spec=spec)
    assert plan(home).choices.shared[-1] == Path("/home/ann"), "she is no user of this one"
    assert plan(inside, spec=spec).choices.shared[-1] == Path("/home/ann/work")


def test_slurmrestd_comes_and_goes():
    without, with_it = plan(), plan(Settings(name="c", rest=True))
    assert (without.environment["COMPOSE_PROFILES"], with_it.environment["COMPOSE_PROFILES"]) == ("", "rest")
    assert set(with_it.overlay["services"]) - set(without.overlay["services"]) == {"slurmrestd"}
    assert plan(Settings(name="c"), made(with_it)).is_met_by(made(with_it)), "what is not said stays as it is"
    assert not plan(Settings(name="c", rest=False), made(with_it)).is_met_by(made(with_it))


def test_containers_in_jobs_come_with_a_registry_whose_port_stays(monkeypatch):
    monkeypatch.setattr(Host, "free_port", lambda self, wanted: wanted + 1)
    with_it = plan(Settings(name="c", containers=True, rest=True))
    assert with_it.environment["COMPOSE_PROFILES"] == "rest,containers"
    assert with_it.environment["SLURMBED_REGISTRY_PORT"] == "5001"
    monkeypatch.setattr(Host, "free_port", lambda self, wanted: 0)
    again = plan(Settings(name="c"), made(with_it))
    assert again.is_met_by(made(with_it)), "what is not said stays as it is"
    without = plan(Settings(name="c", containers=False), made(with_it))
    assert not without.is_met_by(made(with_it))
    assert "registry" not in without.overlay["services"]
    assert without.choices.registry_port is None


def test_a_stopped_cluster_and_one_to_be_larger_are_not_as_planned():
    first = plan()
    assert not first.is_met_by(made(first, state="exited"))
    assert not plan(Settings(name="c", nodes=3), made(first)).is_met_by(made(first))


def test_a_running_cluster_grows_on_the_images_it_runs_on(monkeypatch):
    first = plan()
    monkeypatch.setattr(images, "digest", lambda: "0123456789ab")
    settings = Settings(name="c", nodes=3)
    assert make_plan(settings, None, made(first), LAPTOP, keep_images=True).choices == first.choices
    assert images.tag(make_plan(settings, None, made(first), LAPTOP).choices) == "24.11-full-0123456789ab"


def test_a_flavor_without_torch_has_none_from_anywhere():
    slim = plan(Settings(name="c", flavor="slim"))
    with pytest.raises(UsageError, match=r"TORCH=pypi: the flavor slim has no torch\nFLAVOR=torch, or FLAVOR=full"):
        plan(Settings(name="c", torch="pypi"), made(slim))
    assert plan(Settings(name="c", torch="pypi", flavor="torch"), made(slim)).choices.flavor == "torch"


def test_at_least_so_many_nodes_and_never_fewer_than_there_are():
    eight = made(plan(Settings(name="c", nodes=8)))
    assert len(plan(Settings(name="c", least_nodes=4)).slices) == 4
    assert len(plan(Settings(name="c", least_nodes=4), eight).slices) == 8
    assert len(plan(Settings(name="c", nodes=3), eight).slices) == 3


@pytest.mark.parametrize("asked", [{"cpus": 1}, {"gpus": "emulated:2"}, {"memory": "10M"}])
def test_a_hint_to_remove_a_cluster_names_that_cluster(asked):
    cluster = made(plan(Settings(name="c", nodes=1)))
    with pytest.raises(UsageError, match=r"make clean NAME=c\b"):
        plan(Settings(name="c", **asked), cluster)


def test_a_start_that_was_killed_is_completed():
    killed = made(plan(Settings(name="c", nodes=1)), state="created")
    assert len(plan(Settings(name="c"), killed).slices) == 2


def test_volumes_that_are_left_know_their_clone():
    labels = {"com.docker.compose.project": "c", CLONE_LABEL: "/elsewhere"}
    left = Snapshot("c", INFO, (), (Named("volume", "c_home", labels),), {})
    assert plan(snapshot=left).choices.clone == Path("/elsewhere")
    assert plan(snapshot=left).exists


def test_a_cluster_keeps_its_configuration_file():
    campus, laptop = load(CAMPUS, tuple), load(ROOT / "clusters/laptop.yaml", tuple)
    with_campus = made(plan(Settings(name="c", config=CAMPUS), spec=campus))
    assert with_campus.spec == campus
    assert plan(Settings(name="c"), with_campus).is_met_by(with_campus)
    assert choose_spec(Settings(name="c", config=CAMPUS), campus, with_campus) == campus
    other = Settings(name="c", config=ROOT / "clusters/laptop.yaml")
    with pytest.raises(UsageError, match=r"made with a different configuration file(.|\n)*make clean NAME=c"):
        choose_spec(other, laptop, with_campus)
    with pytest.raises(UsageError, match=r"made with no configuration file(.|\n)*make clean"):
        choose_spec(other, laptop, made(plan()))
    with pytest.raises(UsageError, match="the cluster's configuration file sets them"):
        choose_spec(Settings(name="c", gpus="2"), None, with_campus)


def test_the_record_of_a_cluster_is_read_by_a_later_version():
    """Keys that a later version does not know are passed over."""
    assert Choices.model_validate_json('{"slurm": "26.05", "workspace": "/w", "new": 1}').slurm == "26.05"
