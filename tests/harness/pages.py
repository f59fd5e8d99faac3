"""Pages of docs/ as a reader follows them: their files, and their commands."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.internals import ROOT

BLOCK = re.compile(r"^(?:`(?P<file>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

NAMED = re.compile(r'(?<=hostname = ")slurmbed\b|(?<=/slurmbed/)slurmbed\b')  # where a page names the cluster


@dataclass(frozen=True)
class Page:
    """What a page has to paste: each block of `sh`, and each file, which stands below its name."""

    commands: tuple[str, ...]
    files: dict[str, str]

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text)


def page(name: str, cluster: str = "slurmbed", others: Mapping[str, str] | None = None) -> Page:
    """The page docs/NAME.md, for the cluster of that name. others: words of the page, and what stands for each."""
    text = NAMED.sub(cluster, (ROOT / "docs" / f"{name}.md").read_text())
    for word, other in (others or {}).items():
        assert word in text, f"{name}.md has no {word}"
        text = text.replace(word, other)
    blocks = list(BLOCK.finditer(text))
    files = {block["file"]: block["text"] for block in blocks if block["file"]}
    return Page(tuple(block["text"] for block in blocks if block["kind"] == "sh" and not block["file"]), files)
