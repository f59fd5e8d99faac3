"""The pages of docs/clients/: each is in the index, has something to paste, and is followed by a test."""

import re

import pytest

from harness.pages import page
from slurmbed.project import ROOT

FOLDER = ROOT / "docs" / "clients"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
TESTS = "".join(path.read_text() for path in (ROOT / "tests" / "cluster" / "clients").glob("test_*.py"))


def test_slurmbed_is_installed_from_its_repository():
    """Not by its name: no package index has it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    lines = re.findall("pip install .*slurmbed", "\n".join(path.read_text() for path in pages))
    assert len(lines) > 3
    assert [line for line in lines if "pip install git+https://github.com/OWNER/slurmbed" not in line] == []


def test_the_index_has_all_pages():
    assert sorted(re.findall(r"\]\(([\w-]+)\.md\)", (FOLDER / "README.md").read_text())) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_followed_by_a_test(name):
    assert f'follow("{name}"' in TESTS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_commands_and_files_and_pins_what_it_installs(name):
    text = page(f"clients/{name}", "mine")
    *prepare, use = text.commands
    assert use
    assert text.files
    installed = re.findall(r"pip install (.*)", "".join(prepare))
    packages = [word for line in installed for word in line.split() if not word.startswith("--")]
    assert packages
    assert [word for word in packages if not re.search("==|<", word)] == []
    assert not re.search(r'hostname = "slurmbed"|/slurmbed/slurmbed', "".join([*prepare, use, *text.files.values()]))
