"""GPUs of a node as a value, and how the host's GPUs are assigned. Pure: the host's GPUs come as an argument."""

import re
from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

from slurmbed.errors import UsageError
from slurmbed.project import option

MAX_GPUS = 16  # of one node
EMULATED = "emulated"  # the type of emulated GPUs without another one
FORMS = "2, h100:8, emulated:2 or emulated:h100:8"


class Gpus(BaseModel):
    """The GPUs of one node; written "2", "h100:8", "emulated:2" or "emulated:h100:8". False if there are none."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    count: int = Field(default=0, ge=0, le=MAX_GPUS)
    type: str = ""
    """The type that users ask for; "" for GPUs of any type."""
    emulated: bool = False

    @classmethod
    def parse(cls, text: str) -> "Gpus":
        """ValueError if ``text`` is none of the four forms."""
        match = re.fullmatch(rf"({EMULATED}:)?(?!{EMULATED}:)(?:([a-z][a-z0-9_.-]*):)?(\d+)", text)
        if not match or int(match[3]) > MAX_GPUS:
            raise ValueError(f"write {FORMS}, at most {MAX_GPUS}; 0 for none")
        count = int(match[3])
        return cls(count=count, type=match[2] or "", emulated=bool(match[1])) if count else cls()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return dict(cls.parse(str(value))) if isinstance(value, str | int) else value

    @model_serializer
    def __str__(self) -> str:
        return ":".join(filter(None, (EMULATED if self.emulated else "", self.type, str(self.count))))

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def slurm_type(self) -> str:
        """The type that Slurm knows them by; "" for GPUs of any type."""
        return self.type or (EMULATED if self.emulated else "")

    @property
    def gres(self) -> str:
        """Gres of the node's record, like gpu:2 and gpu:h100:8; "" for none."""
        return ":".join(filter(None, ("gpu", self.slurm_type, str(self.count)))) if self else ""

    def on_host(self, names: Sequence[str]) -> "Gpus":
        """Itself, or emulated GPUs if none of the host's GPUs ``names`` has its type."""
        if not self or self.emulated or any(self.matches(name) for name in names):
            return self
        return self.model_copy(update={"emulated": True})

    def matches(self, name: str) -> bool:
        """Whether a GPU that nvidia-smi calls ``name``, like NVIDIA H100 80GB HBM3, is of its type."""
        return not self.type or bool(re.search(rf"\b{re.escape(self.type)}\b", name.lower()))


NO_GPUS = Gpus()


def parse_gpus(text: str) -> list[str]:
    """Names of the GPUs that ``nvidia-smi -L`` lists; a GPU's MIG instances are not counted."""
    return re.findall(r"^GPU \d+: (.+) \(UUID: \S+\)$", text, re.MULTILINE)


def share_out(gpus: Gpus, nodes: int, names: Sequence[str], taken: Collection[str]) -> list[tuple[str, ...]]:
    """The host's GPUs, by nvidia-smi's numbers, of each of ``nodes`` new nodes.

    Args:
        gpus: of each node, after ``on_host``. Emulated ones need no GPU of the host.
        names: of the host's GPUs, in nvidia-smi's order.
        taken: numbers of the GPUs that other nodes have.

    Raises:
        UsageError: the host has too few.
    """
    if not (nodes and gpus) or gpus.emulated:
        return [()] * nodes
    found = [str(number) for number, name in enumerate(names) if gpus.matches(name)]
    free = [number for number in found if number not in taken]
    if gpus.count * nodes > len(free):
        of_type = f" of type {gpus.type}" if gpus.type else ""
        left = f", {len(free)} of them free" if taken else ""
        raise UsageError(
            f"{option('gpus', gpus)} for each of {nodes} new nodes is {gpus.count * nodes}; "
            f"the host has {len(found)}{of_type}{left}",
            f"nvidia-smi -L lists them; ask for fewer nodes or GPUs, or for emulated ones: "
            f"{option('gpus', f'{EMULATED}:{gpus}')}",
        )
    return [tuple(free[i * gpus.count : (i + 1) * gpus.count]) for i in range(nodes)]


def notice(gpus: Gpus, names: Sequence[str], group: str = "") -> str:
    """A message that GPUs are emulated; "" for GPUs of the host."""
    if not gpus.emulated:
        return ""
    of_type = f" of type {gpus.type}" if gpus.type else ""
    of_group = f" of the group {group}" if group else ""
    reason = "" if names else "no NVIDIA GPU on this machine: "
    return (
        f"{reason}{gpus.count} emulated GPU{'s' * (gpus.count != 1)}{of_type} for each node{of_group}; "
        "programs compute on CPUs"
    )
