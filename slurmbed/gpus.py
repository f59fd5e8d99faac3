"""GPUs of nodes: the host's, shared out, or emulated ones where there are none."""

import re
import shutil
from collections.abc import Collection

from slurmbed.errors import UsageError
from slurmbed.parse import parse_gpus
from slurmbed.run import last_lines, run

MAX_GPUS = 16  # of one node
INSTEAD = "for launchers that need GPUs only in name: GPUS=emulated:2"
TOOLKIT = ("nvidia-ctk", "nvidia-container-runtime-hook")


def canonical(text: str) -> str:
    """The word GPUS as nodes carry it: "" (none), "2" (of the host) or "emulated:2".

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"(emulated:)?(\d+)", text)
    if not match or int(match[2]) > MAX_GPUS:
        hint = f"GPUS=1: one of the host's for each node; {INSTEAD}"
        raise UsageError(f"GPUS={text}: not a number from 0 to {MAX_GPUS}, nor emulated: and such a number", hint)
    return f"{match[1] or ''}{int(match[2])}" if int(match[2]) else ""


def on_host() -> list[str]:
    """Names of the host's GPUs that containers can be given, in nvidia-smi's order.

    Raises:
        UsageError: there is none, or no NVIDIA Container Toolkit.
    """
    if not shutil.which("nvidia-smi"):
        raise UsageError("no NVIDIA GPU on this machine (nvidia-smi not found)", INSTEAD)
    listed = run(["nvidia-smi", "-L"], timeout=60)
    names = parse_gpus(listed.stdout)
    if not listed.ok or not names:
        raise UsageError("nvidia-smi -L names no GPU", f"mend the driver; {INSTEAD}", last_lines(listed.output))
    runtimes = run(["docker", "info", "--format", "{{json .Runtimes}}"], timeout=30).check().stdout
    if '"nvidia"' not in runtimes and not any(map(shutil.which, TOOLKIT)):
        raise UsageError(
            f"Docker cannot give containers this machine's GPUs ({len(names)}): NVIDIA Container Toolkit is missing",
            "install nvidia-container-toolkit, then: "
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        )
    return names


def share_out(gpus: str, nodes: int, taken: Collection[str]) -> list[tuple[str, ...]]:
    """The host's GPUs, by nvidia-smi's numbers, of each of ``nodes`` new nodes; ``taken`` are other nodes'.

    Args:
        gpus: canonical; no GPU of the host is needed for none and for emulated ones.

    Raises:
        UsageError: the host has too few.
    """
    if not (nodes and gpus.isdigit()):
        return [()] * nodes
    each, found = int(gpus), on_host()
    free = [str(number) for number in range(len(found)) if str(number) not in taken]
    if each * nodes > len(free):
        left = f", {len(free)} of them free" if taken else ""
        raise UsageError(
            f"GPUS={each} for each of {nodes} new nodes is {each * nodes}; the host has {len(found)}{left}",
            f"nvidia-smi -L lists them; ask for fewer NODES or GPUS; {INSTEAD}",
        )
    return [tuple(free[i * each : (i + 1) * each]) for i in range(nodes)]
