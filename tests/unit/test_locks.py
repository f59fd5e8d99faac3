"""requirements/*.lock: what images install from PyPI is pinned, with hashes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
REQUIREMENT = re.compile(r"([a-z0-9.-]+)==([\w.!+]+)(?: ; [^\n\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(path: Path) -> dict[str, str]:
    """Name to version. AssertionError for a line that is no comment, and no requirement with its version and hashes."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    assert not REQUIREMENT.sub("", text), "not a requirement with a version and hashes"
    return {name: version for name, version, _ in REQUIREMENT.findall(text)}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_each_package_and_has_its_hashes(path):
    names = re.findall(r"^([\w.-]+)", path.with_suffix(".in").read_text(), flags=re.MULTILINE)
    assert names
    assert set(names) <= set(locked(path))


def test_the_lock_of_torch_has_cuda_nccl_and_files_for_both_architectures():
    path = ROOT / "requirements/torch.lock"
    assert {"nvidia-nccl-cu13", "cuda-toolkit", "triton"} <= set(locked(path)), "what torch says that it needs on Linux"
    runtime = re.search(r"^nvidia-cuda-runtime==.*", path.read_text(), re.MULTILINE)
    assert runtime
    assert "aarch64" in runtime[0]
    assert "x86_64" in runtime[0]


def test_the_images_install_nothing_else_from_pypi():
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installed = re.findall(r"\bpip install [^;\n]*", text)
    used = [re.search(r"--require-hashes -r /(\S+)", line) for line in installed]
    assert all(used), installed
    assert sorted(found[1] for found in used if found) == [path.name for path in LOCKS]
