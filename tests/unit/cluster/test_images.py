"""An image's tag holds a digest of what it is built from."""

import shutil

import pytest

from slurmbed.cluster.images import KINDS, digest, image, inputs, keep
from slurmbed.cluster.settings import Choices
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.overlay import CHOICES_LABEL
from slurmbed.engine.snapshot import Container, Snapshot
from slurmbed.project import ROOT

INFO = EngineInfo("ID", 8, 8192, "/var/lib/docker", True, True, ("runc",))


@pytest.fixture
def copy(tmp_path):
    """A folder with the files that images are built from."""
    for path in (*inputs(ROOT), ROOT / ".dockerignore"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_the_same_files_elsewhere_give_the_same_digest(copy):
    assert digest(copy) == digest(ROOT)


@pytest.mark.parametrize("name", ["Dockerfile", "scripts/entrypoint", "configs/etc/slurm/slurm.conf"])
def test_a_changed_file_gives_another_digest(copy, name):
    (copy / name).write_text((copy / name).read_text() + "\n")
    assert digest(copy) != digest(ROOT)


def test_a_new_file_gives_another_digest(copy):
    (copy / "configs" / "new").touch()
    assert digest(copy) != digest(ROOT)


def test_everything_that_the_dockerfile_copies_is_an_input():
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
        if not word.startswith("--")
    ]
    names = {str(path.relative_to(ROOT)) for path in inputs(ROOT)}
    assert copied
    for word in copied:
        assert any(name == word or name.startswith(word.rstrip("/") + "/") for name in names), word


def test_names_that_containers_had_go_back_to_the_images_they_run_on():
    choices = Choices(digest="0123456789ab")
    names = {kind: image(kind, choices) for kind in KINDS}
    made = {CHOICES_LABEL: choices.model_dump_json()}
    services = {
        "db": "sha256:1",
        "slurmdbd": "sha256:2",
        "slurmctld": "sha256:2",
        "login": "sha256:3",
        "node-1": "sha256:3",
    }
    there = tuple(
        Container(f"c-{name}-1", "c", name, "running", "Up", image_id, made, {}) for name, image_id in services.items()
    )
    there += (Container("c-node-2-1", "c", "node-2", "running", "Up", "sha256:4", {CHOICES_LABEL: "{}"}, {}),)  # older
    moved = {names["db"]: "sha256:1", names["control"]: "sha256:9"}  # and the node's is removed
    tagged: list[tuple[str, str]] = []
    assert keep(choices, Snapshot("c", INFO, there, (), moved), lambda *words: tagged.append(words))
    assert tagged == [("sha256:2", names["control"]), ("sha256:3", names["node"])]
    kept = {names["db"]: "sha256:1", names["control"]: "sha256:2", names["node"]: "sha256:3"}
    assert not keep(choices, Snapshot("c", INFO, there, (), kept), lambda *words: tagged.append(words))


def test_images_of_containers_that_say_nothing_get_no_names():
    """Those of `docker compose up` alone may be another version's."""
    there = (Container("c-login-1", "c", "login", "running", "Up", "sha256:1", {}, {}),)
    named = {image("node", Choices()): "sha256:2"}
    assert not keep(Choices(), Snapshot("c", INFO, there, (), named), lambda *words: pytest.fail(f"tagged {words}"))
