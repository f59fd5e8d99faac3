"""Commands as a user types them."""

import os
import signal
import subprocess

from harness.internals import ROOT


def typed_environment() -> dict[str, str]:
    """The environment of a command as a user types it, not as a part of the `make test` that may be running this."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}


def hear_ctrl_c() -> None:
    """For a child process: a shell that starts the tests in the background has them, and their children, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def make(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess:
    """``make WORDS...`` in the project's folder."""
    env, argv = {**typed_environment(), **environment}, ["make", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True, timeout=900)
