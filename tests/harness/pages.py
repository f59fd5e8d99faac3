"""Pages of docs/ as a reader follows them: their files, and their commands."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.internals import ROOT

BLOCK = re.compile(r"^(?:`(?P<file>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """What a page has to paste: each block of `sh`, and each file, which stands below its name."""

    commands: tuple[str, ...]
    files: dict[str, str]

    @property
    def packages(self) -> list[str]:
        """What its `pip install` lines name, pinned; slurmbed itself is there."""
        lines = re.findall(r"^pip install (.+)$", "".join(self.commands), re.MULTILINE)
        return [word.strip("'") for line in lines for word in line.split() if word != "slurmbed"]

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text)


def page(name: str) -> Page:
    """The page docs/NAME.md."""
    blocks = list(BLOCK.finditer((ROOT / "docs" / f"{name}.md").read_text()))
    files = {block["file"]: block["text"] for block in blocks if block["file"]}
    return Page(tuple(block["text"] for block in blocks if block["kind"] == "sh" and not block["file"]), files)
