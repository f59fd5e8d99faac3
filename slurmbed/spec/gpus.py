"""GPUs of nodes: the host's, shared out, or emulated ones where there are none."""

import re
import shutil
from collections.abc import Collection

from slurmbed.errors import UsageError
from slurmbed.process import run

MAX_GPUS = 16  # of one node
EMULATED = "emulated"  # the type of GPUs that nobody named otherwise
TOOLKIT = ("nvidia-ctk", "nvidia-container-runtime-hook")


def canonical(text: str) -> str:
    """The word GPUS: "" (none), "2", or with a type, "h100:8"; behind "emulated:" GPUs in name only, typed or not.

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(rf"((?:{EMULATED}:)?(?!{EMULATED}:)(?:[a-z][a-z0-9_.-]*:)?)(\d+)", text)
    if not match or int(match[2]) > MAX_GPUS:
        reason = f"GPUS={text}: not a number from 0 to {MAX_GPUS}, nor a type and such a number"
        raise UsageError(reason, "GPUS=2, GPUS=h100:8, GPUS=emulated:2 or GPUS=emulated:h100:8 for each node")
    return f"{match[1]}{int(match[2])}" if int(match[2]) else ""


def count(gpus: str) -> int:
    return int(gpus.rpartition(":")[2] or 0)


def kind(gpus: str) -> str:
    """The type that Slurm knows GPUs by; "" for none."""
    return gpus.removeprefix(f"{EMULATED}:").rpartition(":")[0] or (EMULATED if is_emulated(gpus) else "")


def is_emulated(gpus: str) -> bool:
    return gpus.startswith(f"{EMULATED}:")


def gres(gpus: str) -> str:
    """GPUs in Slurm's words, like gpu:2 and gpu:h100:8, which do not say whether they are emulated; "" for none."""
    return ":".join(filter(None, ("gpu", kind(gpus), str(count(gpus))))) if gpus else ""


def from_gres(text: str, gpu_ids: Collection[str]) -> str:
    """The word that became ``gres``: a type without GPUs of the host behind it is emulated."""
    word = text.removeprefix("gpu:")
    return f"{EMULATED}:{word}" if ":" in word and not gpu_ids and not is_emulated(word) else word


def listed() -> list[str]:
    """Names of the GPUs that nvidia-smi finds, in its order."""
    return parse_gpus(run(["nvidia-smi", "-L"], timeout=60).stdout) if shutil.which("nvidia-smi") else []


def on_host() -> list[str]:
    """Names of the host's GPUs that containers can be given, in nvidia-smi's order.

    Raises:
        UsageError: there is none, or no NVIDIA Container Toolkit.
    """
    names = listed()
    if not names:
        raise UsageError("no NVIDIA GPU on this machine", "GPUS=2 gives each node two emulated ones")
    runtimes = run(["docker", "info", "--format", "{{json .Runtimes}}"], timeout=30).check().stdout
    if '"nvidia"' not in runtimes and not any(map(shutil.which, TOOLKIT)):
        raise UsageError(
            f"Docker cannot give containers this machine's GPUs ({len(names)}): NVIDIA Container Toolkit is missing",
            "install nvidia-container-toolkit, then: "
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        )
    return names


def resolve(gpus: str) -> str:
    """``gpus`` (canonical), emulated unless this machine has a GPU, and one of that type."""
    if not gpus or is_emulated(gpus) or any(is_of(kind(gpus), name) for name in listed()):
        return gpus
    return f"{EMULATED}:{gpus}"


def is_of(kind: str, name: str) -> bool:
    """Whether nvidia-smi's name is one of that type, like NVIDIA H100 of h100; each is of the type ""."""
    return not kind or bool(re.search(rf"\b{re.escape(kind)}\b", name.lower()))


def share_out(gpus: str, nodes: int, taken: Collection[str]) -> list[tuple[str, ...]]:
    """The host's GPUs, by nvidia-smi's numbers, of each of ``nodes`` new nodes; ``taken`` are other nodes'.

    Args:
        gpus: resolved; no GPU of the host is needed for none and for emulated ones.

    Raises:
        UsageError: the host has too few.
    """
    if not (nodes and gpus) or is_emulated(gpus):
        return [()] * nodes
    each, wanted = count(gpus), kind(gpus)
    found = [str(number) for number, name in enumerate(on_host()) if is_of(wanted, name)]
    free = [number for number in found if number not in taken]
    if each * nodes > len(free):
        of_type = f" of type {wanted}" if wanted else ""
        left = f", {len(free)} of them free" if taken else ""
        raise UsageError(
            f"GPUS={gpus} for each of {nodes} new nodes is {each * nodes}; the host has {len(found)}{of_type}{left}",
            f"nvidia-smi -L lists them; ask for fewer NODES or GPUS; in name only: GPUS={EMULATED}:{gpus}",
        )
    return [tuple(free[i * each : (i + 1) * each]) for i in range(nodes)]


def notice(gpus: str, group: str = "") -> str:
    """What a user should know of GPUs (resolved) of nodes that are not there; "" for the host's."""
    if not is_emulated(gpus):
        return ""
    number = count(gpus)
    of_type = f" of type {kind(gpus)}" if kind(gpus) != EMULATED else ""
    of_group = f" of the group {group}" if group else ""
    why = "" if listed() else "no NVIDIA GPU on this machine: "
    those = f"{number} emulated GPU{'s' * (number != 1)}{of_type}"
    return f"{why}{those} for each node{of_group}; ranks compute on CPUs"


def parse_gpus(text: str) -> list[str]:
    """Names of the GPUs that ``nvidia-smi -L`` lists; what a GPU is divided into (MIG) is not counted."""
    return re.findall(r"^GPU \d+: (.+) \(UUID: \S+\)$", text, re.MULTILINE)
