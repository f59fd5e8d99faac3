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


def test_a_daemon_starts_without_children_of_the_shell_before_it(tmp_path):
    """slurmctld ends if a child that is not its own ends while it waits for slurmscriptd."""
    text = ENTRYPOINT.read_text()
    functions = text[: text.index("# Containers start together")]
    listening = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        script = f'{LATE}\n{functions}\nwait_for_port db {listening} 5\nexec {sys.executable} -c "$1"'
        shell = ["bash", "-c", script, "entrypoint", CHILDREN]
        ended = subprocess.run(shell, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("none\n", "", 0)
