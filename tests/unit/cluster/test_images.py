"""An image's tag holds a digest of what it is built from."""

import shutil

import pytest

from slurmbed.cluster.images import digest, inputs
from slurmbed.project import ROOT


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
