"""The only place that starts a process and waits for it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from slurmbed.errors import CommandError

LAST_LINES = 25
GRACE = 10  # seconds that a command has to end in order once it is told to
INHERITED: set[int] = set()  # file descriptors that every command inherits: a lock is held until they have ended too


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
    stdin: str | IO[bytes] | None = None,
    env: Mapping[str, str | None] | None = None,
    capture: bool = True,
) -> Result:
    """Run ``argv`` to its end and return what it left, whatever its exit status.

    A command that runs out of time, or that is being waited for when this process is interrupted, is ended with all
    that it started: the `docker` command is the parent of the Compose that does the work.

    Args:
        timeout: seconds after which the command is ended.
        stdin: text or a file for its standard input; without it, none when captured and the terminal's otherwise.
        env: variables on top of the environment; None takes one out.
        capture: False to let it write to the terminal.

    Raises:
        CommandError: it could not be started, or ran past ``timeout``.
    """
    argv = tuple(str(word) for word in argv)
    pipe = subprocess.PIPE if capture else None
    text = stdin if isinstance(stdin, str) else None
    nothing = subprocess.DEVNULL if capture else None
    # In a new session, so that all its processes can be ended. A command that may ask a question stays on the terminal.
    own_session = capture or not (sys.stdin and sys.stdin.isatty())
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if isinstance(stdin, str) else stdin or nothing,
            stdout=pipe,
            stderr=pipe,
            env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
            text=True,
            errors="replace",
            start_new_session=own_session,
            pass_fds=tuple(INHERITED),
        )
    except OSError as error:
        raise CommandError(f"{argv[0]} could not be started: {error.strerror}", f"is {argv[0]} installed?") from error
    try:
        stdout, stderr = child.communicate(text, timeout)
    except subprocess.TimeoutExpired as error:
        output = end(child, own_session)
        raise CommandError(f"timed out after {timeout:g} s: {shlex.join(argv)}", "", last_lines(output)) from error
    except BaseException:
        end(child, own_session)
        raise
    return Result(argv, child.returncode, stdout or "", stderr or "")


def spawn(argv: Sequence[str], log: int) -> None:
    """Start ``argv`` as a process that outlives this one and its terminal; it has no lock of this one's.

    Args:
        log: a file descriptor for what it prints; it is closed here.
    """
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    os.close(log)


def end(child: subprocess.Popen, own_session: bool) -> str:
    """Tell a command, with all that it started, to end; then make it. Returns what it printed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            if own_session:
                os.killpg(child.pid, number)
            else:
                child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return "".join(filter(None, child.communicate(timeout=GRACE)))
    return ""
