"""The list of `make mutate` fits the programs that it is about."""

import pytest

from dev.mutate import mutations
from slurmbed.project import ROOT


@pytest.mark.parametrize("mutation", mutations(), ids=lambda each: each.name)
def test_a_mutation_can_be_made_and_its_test_is_there(mutation):
    assert mutation.mutated() != (ROOT / mutation.path).read_text()
    file, _, test = mutation.test_path.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_the_page_says_how_many_mistakes_there_are():
    count = sum(mutation.folder == "workspace" for mutation in mutations())
    assert f"makes {count} other mistakes" in (ROOT / "docs" / "training.md").read_text()


def test_names_tell_mutations_apart():
    names = [mutation.name for mutation in mutations()]
    assert len(set(names)) == len(names)


def test_a_few_are_made_by_make_test():
    assert 4 <= sum(mutation.short for mutation in mutations()) <= 8
