"""container-image list and remove."""

import fcntl
from pathlib import Path

import pytest
from made import Image, archive, empty, layers, refused


@pytest.fixture
def name(registry):
    """Two images with one layer in common: NAME:1 and NAME:2."""
    for tag in ("1", "2"):
        registry.push("a", tag, Image(archive(("common", "x" * 5000)), archive(("own", tag))))
    return f"127.0.0.1:{registry.port}/a"


def kept(store, image, node="node-1", called="kept"):
    folder = store / "containers" / node / called
    for each in ("upper", "work/work"):
        (folder / each).mkdir(parents=True)
    (folder / "work/work").chmod(0)
    (folder / "image").write_text(image)
    return folder


def shown(run):
    status, output, errors = run("list")
    assert (status, errors) == (0, "")
    return [line.split()[0] for line in output.splitlines()[1:]]


def test_images_are_listed_by_the_names_they_were_pulled_by(run, registry, name):
    assert shown(run) == []
    run("pull", f"{name}:1")
    run("pull", f"{name}:2")
    assert sorted(shown(run)) == [f"{name}:1", f"{name}:2"]
    registry.push("a", "1", Image(archive(("common", "new"))))
    run("pull", f"{name}:1")
    registry.push("a", "also", Image(archive(("common", "new"))))
    run("pull", f"{name}:also")
    assert sorted(shown(run)) == ["-", f"{name}:1", f"{name}:2", f"{name}:also"], (
        "a name is that of the image pulled last"
    )


def test_what_is_removed_takes_the_layers_with_it_that_no_other_image_has(run, store, name):
    common, own = layers(run("pull", f"{name}:1"))
    other = layers(run("pull", f"{name}:2"))
    assert run("remove", f"{name}:1") == (0, "", "")
    assert shown(run) == [f"{name}:2"]
    assert (Path(common).exists(), Path(own).exists()) == (True, False)
    assert layers(run("pull", f"{name}:2")) == other
    identity = run("list")[1].splitlines()[1].split()[1]
    assert run("remove", identity) == (0, "", "")
    assert empty(store)
    assert len(layers(run("pull", f"{name}:1"))) == 2


def test_kept_containers_are_listed_and_removed_too(run, store, name):
    image = run("pull", f"{name}:1")[1].strip()
    folder = kept(store, image)
    assert shown(run) == [f"{name}:1", "node-1/kept"]
    refused(run("remove", f"docker://{name}:1"), "node-1/kept", "remove it first")
    with (folder / "running").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        refused(run("remove", "node-1/kept"), "node-1/kept", "runs")
    assert run("remove", f"{name}:1", "node-1/kept") == (0, "", "")
    assert shown(run) == []
    assert not folder.exists()


def test_a_container_is_out_of_the_way_before_its_files_are_removed(run, store, monkeypatch):
    """A step that comes in between must not find a half of it."""
    folder = kept(store, "x")
    seen = []
    monkeypatch.setattr("imagestore.store.remove_tree", lambda path: seen.append((path, folder.exists())))
    assert run("remove", "node-1/kept") == (0, "", "")
    assert seen == [(f"{store}/tmp/container", False)]
    monkeypatch.undo()


@pytest.mark.parametrize("wrong", ["ghost:1", "node-1/ghost", "../..", "node-1/..", "sha256", "", "/", "aaaaaa"])
def test_what_is_not_there_is_said_and_nothing_is_removed(run, store, name, wrong):
    run("pull", f"{name}:1")
    kept(store, "x")
    refused(run("remove", f"{name}:1", wrong), "no image or kept container")
    assert sorted(shown(run)) == [f"{name}:1", "node-1/kept"]
