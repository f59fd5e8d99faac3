"""Amounts of memory."""

import pytest

from slurmbed.spec.memory import parse_memory


@pytest.mark.parametrize(("text", "mib"), [("2048", 2048), ("512M", 512), ("2G", 2048), ("2GiB", 2048), ("1gb", 1024)])
def test_memory(text, mib):
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-1", "2T", "two", "1.5G", "G"])
def test_bad_memory_says_how_to_write_it(text):
    with pytest.raises(ValueError, match="write 2048"):
        parse_memory(text)
