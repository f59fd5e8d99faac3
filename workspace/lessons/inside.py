"""What a container shares with its node: what a process sees on the node, beside what another sees in the container.

srun python3 -m lessons.inside --write runs/node.json
srun --container-image=... python3 -m lessons.inside --compare runs/node.json
"""

import argparse
import json
import os
import socket
from pathlib import Path


def seen():
    """{what: a value that is the same for two processes exactly if they share it}."""
    return {
        "kernel": f"{os.uname().release} {Path('/proc/sys/kernel/random/boot_id').read_text()}",
        "host name": socket.gethostname(),
        "network": namespace("net"),
        "processes": namespace("pid"),
        "shared memory": place("/dev/shm"),
        "user": f"{os.getuid()} {os.getgid()}",
        "this folder": place("."),
        "/usr": place("/usr"),
        "/tmp": place("/tmp"),
        "home folder": place(os.path.expanduser("~")),
        "mounts": namespace("mnt"),
    }


def namespace(kind):
    """The number of one of the kernel's namespaces: https://man7.org/linux/man-pages/man7/namespaces.7.html."""
    return os.readlink(f"/proc/self/ns/{kind}")


def place(path):
    """Which folder that is, whatever it is called."""
    found = os.stat(path)
    return f"{found.st_dev} {found.st_ino}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, help="a file to write what this process sees into")
    parser.add_argument("--compare", type=Path, help="such a file of a process on the same node")
    options = parser.parse_args()
    if options.write:
        options.write.write_text(json.dumps(seen()))
    if options.compare:
        on_node = json.loads(options.compare.read_text())
        for what, value in seen().items():
            print(f"{what:<15}{'the same' if value == on_node[what] else 'its own'}")


if __name__ == "__main__":
    main()
