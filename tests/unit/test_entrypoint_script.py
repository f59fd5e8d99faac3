"""The entrypoint's functions, run by the bash of this machine."""

import socket
import subprocess
import sys
from pathlib import Path

ENTRYPOINT = Path(__file__).parents[2] / "scripts/entrypoint"

LATE = ":() { sleep 1; }"
"""`:` in a process substitution that ends late, as on a machine with too much to do."""

CHILDREN = """
import os
try:
    os.waitpid(-1, os.WNOHANG)
    print("children")
except ChildProcessError:
    print("none")
"""


def test_a_daemon_starts_without_children_of_the_shell_before_it():
    """slurmctld ends if a child that is not its own ends while it waits for slurmscriptd."""
    text = ENTRYPOINT.read_text()
    functions = text[: text.index("# Containers start together")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait = f"wait_for_port 127.0.0.1 {server.getsockname()[1]} 5"
        script = f'{LATE}\n{functions}\n{wait}\nexec {sys.executable} -c "$1"'
        shell = ["bash", "-c", script, "entrypoint", CHILDREN]
        ended = subprocess.run(shell, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("none\n", "", 0)
