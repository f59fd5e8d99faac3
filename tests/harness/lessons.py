"""The lessons of workspace/, as what a student types and what the page promises to be printed."""

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from harness import engine

WORKSPACE = Path(__file__).parents[2] / "workspace"
PAGE = WORKSPACE / "README.md"
# The lessons with pages of their own, workspace/lessons/NAME.md, by the cluster that they need.
ON_TWO_NODES = ("arithmetic", "fast", "fsdp", "ring", "scaling", "torchrun")
ON_CAMPUS = ("slurm", "gpus")
WITH_CONTAINERS = ("containers",)
LIMIT = 400  # seconds for a lesson

# What a promised line may differ in: left-out text, a drawing, a number with a point or in percent, spaces.
FREE = re.compile(r"(?P<text>\.\.\.)|(?P<drawing>\[[^]]{20,}\])|(?P<number>\d[\d,]*\.\d+%?|\d[\d,]*%)|(?P<space>\s+)")
INSTEAD = {"text": ".*", "drawing": r"\[.*\]", "number": r"[\d.,]+%?", "space": r"\s+"}


@dataclass
class Command:
    typed: str
    may_fail: bool = False
    promised: list[str] = field(default_factory=list)

    def broken_promises(self, printed: str) -> list[str]:
        """The promised lines that no line of what was printed matches."""
        lines = [line.strip() for line in printed.splitlines()]
        return [each for each in self.promised if not any(pattern(each).fullmatch(line) for line in lines)]


@dataclass
class Lesson:
    title: str
    text: str
    commands: list[Command]


def pattern(promise: str) -> re.Pattern:
    """What matches a promised line: itself, but for what is FREE."""
    found, end = [], 0
    promise = re.sub(r"\s*\.\.\.\s*", "...", promise.strip())  # text left out is left out with its spaces
    for match in FREE.finditer(promise):
        found += [re.escape(promise[end : match.start()]), INSTEAD[match.lastgroup]]
        end = match.end()
    return re.compile("".join(found) + re.escape(promise[end:]))


def read(page: str) -> list[Lesson]:
    """The introduction, which is the first, and the numbered lessons; from the text of the page."""
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    lessons = [Lesson(title, text, commands(text)) for title, text in zip(parts[1::2], parts[2::2], strict=True)]
    return [lesson for lesson in lessons if lesson.commands]


def page(name: str) -> Lesson:
    """A lesson that has a page of its own in workspace/lessons; all its commands are typed into one shell."""
    text = (WORKSPACE / "lessons" / f"{name}.md").read_text()
    return Lesson(name, text, commands(text))


def commands(text: str) -> list[Command]:
    """Those of the blocks marked `console`: a line after a `$`, and what it prints. In `console break` it may fail."""
    found = []
    for mark, block in re.findall(r"^```console( break)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), may_fail=bool(mark)))
            elif line.strip(" ."):
                found[-1].promised.append(line)
    return found


def typed(cluster, commands: list[Command]) -> list[tuple[int, str]]:
    """Type commands into one shell of alice's; [(exit status, what was printed)]. All of it must end in time."""
    mark = f"end of command {secrets.token_hex(8)}"
    script = "\n".join(f'{{ {command.typed}\n}} 2>&1; echo "{mark} $?"' for command in commands)
    shell = ["timeout", "--kill-after=5", str(LIMIT), "bash", "-c", script]
    done = engine.on_login(cluster, shell, timeout=LIMIT + 30)
    # Output, status, output, status, ..; what is left is of a command that did not end.
    parts = re.split(rf"{mark} (\d+)\n", done.stdout)
    ended = [(int(status), printed) for printed, status in zip(parts[::2], parts[1::2], strict=False)]
    assert len(ended) == len(commands), f"not over in time: {commands[len(ended)].typed}\n{done.output[-3000:]}"
    return ended


def keeps_its_promises(cluster, commands: list[Command]) -> None:
    """An assertion fails if a command fails that should not, or does not print what the page promises."""
    for command, (status, printed) in zip(commands, typed(cluster, commands), strict=True):
        assert status == 0 or command.may_fail, f"exit status {status}: {command.typed}\n{printed}"
        assert command.broken_promises(printed) == [], f"{command.typed}\n{printed}"
