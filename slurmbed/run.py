"""The only place that starts a process and waits for it."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmbed.errors import CommandError

LAST_LINES = 25


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The last ``count`` non-empty lines of ``text``, indented."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-count:])


@dataclass(frozen=True)
class Result:
    """What a finished command left: its argv, exit status and output."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def command(self) -> str:
        """The command as it can be pasted into a shell."""
        return shlex.join(self.argv)

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def check(self, hint: str = "") -> "Result":
        """Itself, or CommandError with the pasteable command and the last lines of its output."""
        if not self.ok:
            raise CommandError(f"exit status {self.returncode}: {self.command}", hint, last_lines(self.output))
        return self


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    capture: bool = True,
) -> Result:
    """Run ``argv`` to its end and return what it left, whatever its exit status.

    Args:
        timeout: seconds after which the command is killed.
        stdin: text for its standard input; without it, none when captured and the terminal's otherwise.
        env: variables on top of the environment.
        capture: False to let it write to the terminal.

    Raises:
        CommandError: it could not be started, or ran past ``timeout``.
    """
    argv = tuple(str(word) for word in argv)
    pipe = subprocess.PIPE if capture else None
    source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL if capture else None}
    try:
        done = subprocess.run(
            argv,
            stdout=pipe,
            stderr=pipe,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            text=True,
            errors="replace",
            **source,
        )
    except OSError as error:
        raise CommandError(f"{argv[0]} could not be started: {error.strerror}", f"is {argv[0]} installed?") from error
    except subprocess.TimeoutExpired as error:
        output = "".join(part.decode(errors="replace") for part in (error.stdout, error.stderr) if part)
        raise CommandError(f"no end after {timeout:g} s: {shlex.join(argv)}", "", last_lines(output)) from error
    return Result(argv, done.returncode, done.stdout or "", done.stderr or "")
