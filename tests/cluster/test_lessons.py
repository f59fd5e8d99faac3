"""Every command of workspace/README.md, typed as alice, prints what the page promises.

In order: later lessons show runs of earlier ones.
"""

import re
import secrets

import pytest

from harness import engine
from harness.lessons import PAGE, Command, read
from slurmbed.course import data

INTRODUCTION, *LESSONS = read(PAGE.read_text())
LIMIT = 400  # seconds for a lesson


@pytest.fixture(scope="module")
def typed(cluster):
    """Type commands into one shell of alice's; [(exit status, what was printed)]. All of it must end in time."""

    data.text(cluster)

    def typed(commands: list[Command]) -> list[tuple[int, str]]:
        mark = f"end of command {secrets.token_hex(8)}"
        script = "\n".join(f'{{ {command.typed}\n}} 2>&1; echo "{mark} $?"' for command in commands)
        shell = ["timeout", "--kill-after=5", str(LIMIT), "bash", "-c", script]
        done = engine.on_login(cluster, shell, timeout=LIMIT + 30)
        # Output, status, output, status, ..; what is left is of a command that did not end.
        parts = re.split(rf"{mark} (\d+)\n", done.stdout)
        ended = [(int(status), printed) for printed, status in zip(parts[::2], parts[1::2], strict=False)]
        assert len(ended) == len(commands), f"not over in time: {commands[len(ended)].typed}\n{done.output[-3000:]}"
        return ended

    return typed


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.title)
def test_lesson(typed, lesson):
    commands = [*INTRODUCTION.commands, *lesson.commands]
    for command, (status, printed) in zip(commands, typed(commands), strict=True):
        assert status == 0 or command.may_fail, f"exit status {status}: {command.typed}\n{printed}"
        assert command.broken_promises(printed) == [], f"{command.typed}\n{printed}"
