"""Texts and batches."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt import data
from gpt.batches import TextData
from gpt.config import Config

CONTENT = "To be, or not to be, that is the question:\n" * 40


@pytest.fixture
def batches():
    return TextData(CONTENT, "".join(sorted(set(CONTENT))), Config(block_size=16, batch_size=4, eval_batch_size=3))


def test_vocabulary(batches):
    assert batches.decode(batches.encode(CONTENT)) == CONTENT
    assert batches.symbols == "".join(sorted(set(CONTENT)))
    with pytest.raises(ValueError, match="character 'z' is not among"):
        batches.encode("z")


def test_split(batches):
    assert len(batches.train) == int(0.9 * len(CONTENT))
    assert batches.decode(torch.cat((batches.train, batches.validation)).tolist()) == CONTENT


def test_a_batch_depends_on_seed_and_step_only(batches):
    again = TextData(CONTENT, batches.symbols, batches.config)
    again.batch(1)
    tokens, targets = batches.batch(5)
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(tokens, again.batch(5)[0])
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert not torch.equal(tokens, batches.batch(6)[0])
    other = TextData(CONTENT, batches.symbols, Config(block_size=16, batch_size=4, seed=1))
    assert not torch.equal(tokens, other.batch(5)[0])


def test_validation_is_the_whole_text(batches):
    pairs = list(batches.validation_batches())
    tokens = torch.cat([tokens.flatten() for tokens, _ in pairs])
    targets = torch.cat([targets.flatten() for _, targets in pairs])
    assert torch.equal(tokens, batches.validation[:-1])
    assert torch.equal(targets, batches.validation[1:])
    assert len(targets) % 16, "no smaller batch at the end: choose another length for this test"


def test_prepare_keeps_a_file_with_its_record(tmp_path):
    file = tmp_path / "hamlet.txt"
    file.write_text(CONTENT)
    data.prepare(str(file), tmp_path / "data")
    record = json.loads((tmp_path / "data" / "hamlet.json").read_text())
    assert record == {
        "name": "hamlet",
        "source": str(file),
        "sha256": hashlib.sha256(CONTENT.encode()).hexdigest(),
        "characters": len(CONTENT),
        "symbols": len(set(CONTENT)),
    }
    assert data.load(str(tmp_path / "data" / "hamlet.txt")).source == str(file)
    (tmp_path / "data" / "hamlet.txt").write_text(CONTENT * 2)
    assert data.load(str(tmp_path / "data" / "hamlet.txt")).source == str(tmp_path / "data" / "hamlet.txt")


def test_a_text_on_standard_input_is_kept_under_the_name_of_its_source(tmp_path):
    """As it comes from a machine whose files are not here."""
    text = data.prepare_input(CONTENT.encode(), "/home/ada/hamlet.txt", tmp_path)
    assert (text.name, text.source) == ("hamlet", "/home/ada/hamlet.txt")
    assert data.load(str(tmp_path / "hamlet.txt")) == text
    again = data.prepare_input(CONTENT.encode(), "/elsewhere/hamlet.txt", tmp_path)
    assert again == text, "the same text: its record says where it first came from"
    other = data.prepare_input(CONTENT.upper().encode(), "/elsewhere/hamlet.txt", tmp_path)
    assert data.load(str(tmp_path / "hamlet.txt")) == other


def test_the_program_takes_standard_input(workspace):
    command = [sys.executable, str(workspace / "gpt/data.py"), "--text", "-", "--source", "/home/ada/short.txt"]
    done = subprocess.run(command, input="short", capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "data.py: error: the text /home/ada/short.txt has 5 characters, it needs 1000 or more\n"


def test_sources_are_tried_in_order_once(tmp_path, monkeypatch):
    def fails():
        raise OSError("no route")

    def works():
        return data.Text("second", "somewhere", CONTENT)

    monkeypatch.setattr(data, "SOURCES", {"first": fails, "second": works})
    assert data.prepare(folder=tmp_path).name == "second"
    monkeypatch.setattr(data, "SOURCES", {"first": fails, "second": fails})
    assert data.prepare(folder=tmp_path).source == "somewhere"
    with pytest.raises(ValueError, match=r"(?s)first: no route.*--text FILE"):
        data.prepare(folder=tmp_path / "empty")
    with pytest.raises(ValueError, match=r"python3 gpt/data\.py"):
        data.load(folder=tmp_path / "empty")


def test_a_text_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def half(path, content):
        path.open("wb").write(content[: len(content) // 2])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space left"):
        data.keep(data.Text("a", "somewhere", CONTENT), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".txt")] == []


def test_checksum():
    with pytest.raises(ValueError, match=r"somewhere has sha256 .*, expected 0"):
        data.checked(data.Text("a", "somewhere", CONTENT), "0")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has 0 characters"), (b"abc", "has 3 characters"), (b"\xff" * 2000, "is not UTF-8 text")],
)
def test_files_that_are_no_text(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path / "a.txt"))


def test_markdown_of_a_play_becomes_dialogue():
    markdown = (
        "# Play\n\n## ACT I\n\n_Enter ROMEO, and\nothers_\n\n**ROMEO**  \n_\\[Aside]_  \nAy me!  \nSad hours.\n\n"
        "_Exit_\n\n**First Citizen**  \nSpeak.\n"
    )
    assert data.dialogue(markdown) == "ROMEO:\nAy me!\nSad hours.\n\nFirst Citizen:\nSpeak.\n"


def test_preparation_needs_no_torch(workspace):
    program = "import sys; sys.modules['torch'] = None; from gpt import data"
    subprocess.run([sys.executable, "-c", program], cwd=workspace, check=True, timeout=120)
