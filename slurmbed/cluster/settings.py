"""The settings of a cluster as typed values, and their defaults. Pure."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from slurmbed.errors import UsageError
from slurmbed.project import DEFAULT_NAME, IS_CLONE, ROOT, default_workspace, option
from slurmbed.spec.gpus import Gpus
from slurmbed.spec.memory import parse_memory

VERSIONS = {"24.11": "trixie", "26.05": "sid"}
"""Version of Slurm to the Debian suite that packages it. The first is the default."""

FLAVORS = {
    "slim": "slurmd, sshd, python3, pip, venv",
    "torch": "slim, PyTorch, compilers and the programs of a login node",
    "full": "torch, accelerate, DeepSpeed, Ray, Open MPI and other launchers",
}
"""Flavor of the node image to what is in it. Each is the stage node-FLAVOR of the Dockerfile."""
DEFAULT_FLAVOR = "full" if IS_CLONE else "slim"

MAX_NODES = 256
DEFAULT_NODES = 2
IMAGES_PROJECT = "slurmbed-images"  # the Compose project that builds the images; no cluster is called so


def whole_number(low: int, high: int, value: Any) -> Any:
    """A number from text of digits alone; ValueError if it is not one from ``low`` to ``high``."""
    if not re.fullmatch(r"\d+", str(value)) or not low <= int(value) <= high:
        raise ValueError(f"not a whole number from {low} to {high}")
    return int(value)


def known(table: Mapping[str, object], value: str) -> str:
    if value not in table:
        raise ValueError(f"not known; choose one of {', '.join(table)}")
    return value


def cluster_name(value: str) -> str:
    """ValueError for a name that Compose would not take as a project's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,40}", value):
        raise ValueError("not a cluster name; use lower-case letters, digits, '-' and '_'")
    if value == IMAGES_PROJECT:
        raise ValueError("the images are built under this name; choose another one")
    return value


def mebibytes(value: Any) -> Any:
    return parse_memory(value) if isinstance(value, str) else value


def folder(value: Path) -> Path:
    """The folder's absolute path. ValueError if it does not exist, or must not be shared with a cluster."""
    if not value.is_dir():
        raise ValueError("not a folder; name the folder of your jobs")
    path = value.resolve()
    if path in (Path("/"), Path.home().resolve()):
        raise ValueError("a cluster cannot share the whole machine or home; choose a folder in it")
    return path


TAKEN = re.compile(
    r"/|/(bin|boot|dev|etc|keys|lib\w*|proc|run|sbin|scratch|sys|usr|workspace|home/alice|home/bob|opt/launchers)(/.*)?"
    r"|/(home|opt|root|tmp|var|var/lib)|/var/lib/(container-images|mysql|slurm)(/.*)?"
)
"""Folders of the containers that no folder of the host may cover."""


def can_be_shared(path: Path) -> bool:
    """Whether containers can have this folder of the host under the same path. Colons separate paths in variables."""
    return not TAKEN.fullmatch(str(path)) and ":" not in str(path)


def shared_folder(value: Path) -> Path:
    """Like ``folder``. ValueError if the containers have another folder at this path."""
    path = folder(value)
    if not can_be_shared(path):
        raise ValueError(
            f"containers cannot have a folder at this path; share another one, or use {option('workspace')}"
        )
    return path


def file(value: Path) -> Path:
    if not value.is_file():
        raise ValueError("no such file; name one like clusters/laptop.yaml")
    return value


def number(low: int, high: int) -> BeforeValidator:
    return BeforeValidator(partial(whole_number, low, high))


Version = Annotated[str, AfterValidator(partial(known, VERSIONS))]
Flavor = Annotated[str, AfterValidator(partial(known, FLAVORS))]
Torch = Literal["debian", "pypi"]


class Settings(BaseModel):
    """What a user asks of a cluster. None: an existing cluster keeps its value, a new one gets the default.

    Raises:
        pydantic.ValidationError: a value that is wrong on every machine. ``checked`` reports it in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Annotated[str, AfterValidator(cluster_name)] = Field(default=DEFAULT_NAME, description="name of the cluster")
    nodes: Annotated[int, number(1, MAX_NODES)] | None = Field(
        default=None, description=f"number of nodes [default: as many as exist, or {DEFAULT_NODES}]"
    )
    cpus: Annotated[int, number(1, 1024)] | None = Field(
        default=None, description="CPUs per node [default: an equal share of the host's]"
    )
    memory: Annotated[int, BeforeValidator(mebibytes)] | None = Field(
        default=None,
        description="memory per node, like 2G [default: an equal share of three quarters of the host's]",
    )
    gpus: Gpus | None = Field(
        default=None,
        description="GPUs per node: 8, h100:8 or emulated:h100:8; emulated if the host has none [default: 0]",
    )
    config: Annotated[Path, AfterValidator(file)] | None = Field(
        default=None,
        description="configuration file instead of --nodes, --cpus, --memory and --gpus, like clusters/campus.yaml",
    )
    slurm: Version | None = Field(default=None, description=f"version of Slurm [default: {next(iter(VERSIONS))}]")
    flavor: Flavor | None = Field(
        default=None,
        description="what nodes have installed. "
        + "; ".join(f"{name}: {text}" for name, text in FLAVORS.items())
        + f" [default: {DEFAULT_FLAVOR}]",
    )
    torch: Torch | None = Field(
        default=None, description="where PyTorch comes from: Debian, or PyPI with CUDA [default: debian]"
    )
    nvidia_smi: bool | None = Field(
        default=None, description="install an emulated nvidia-smi if GPUs are emulated [default: nvidia-smi]"
    )
    cgroups: bool | None = Field(
        default=None,
        description="limit jobs by Slurm's cgroup plugin; needs cgroup v2 and Docker Engine 28 [default: no-cgroups]",
    )
    rest: bool | None = Field(default=None, description="run slurmrestd; see `slurmbed token` [default: no-rest]")
    containers: bool | None = Field(
        default=None,
        description="let jobs run in containers, and run a registry for their images [default: no-containers]",
    )
    ssh_port: Annotated[int, number(1, 65535)] | None = Field(
        default=None, description="port of the login node on 127.0.0.1 [default: a free one]"
    )
    workspace: Annotated[Path, AfterValidator(folder)] | None = Field(
        default=None, description="host folder that nodes see as /workspace [default: workspace/ of the project]"
    )
    mount: tuple[Annotated[Path, AfterValidator(shared_folder)], ...] | None = Field(
        default=None, description="host folder to share with all nodes, at the same path; can be repeated"
    )
    retain: bool = Field(default=False, description="keep the containers of a failed start")
    adopt: bool = Field(default=False, description="use a cluster that another clone or installation made")
    least_nodes: int = Field(default=0, exclude=True)
    """The smallest number of nodes if ``nodes`` is not given: as many as exist, but at least so many."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> "Settings":
        given = [key for key in ("nodes", "cpus", "memory", "gpus") if getattr(self, key) is not None]
        if self.config and given:
            names = ", ".join(map(option, given))
            raise ValueError(
                f"{option('config', self.config)} cannot be combined with {names}; leave out one or the other"
            )
        return self


def checked(values: dict[str, Any]) -> Settings:
    """Settings from text, as from a command line. UsageError for wrong values, each as ``NODES=many: reason``."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise UsageError("\n".join(in_a_line(each) for each in error.errors())) from None


def in_a_line(error: Any) -> str:
    """One of pydantic's errors: the option as the user types it, and the reason."""
    reason = error["msg"].removeprefix("Value error, ")
    return f"{option(str(error['loc'][0]), error['input'])}: {reason}" if error["loc"] else reason


class Choices(BaseModel):
    """What all containers of a cluster are made with; the defaults are those of a new cluster."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    slurm: str = next(iter(VERSIONS))
    flavor: Flavor = DEFAULT_FLAVOR
    torch: Torch = "debian"
    nvidia_smi: bool = True
    cgroups: bool = False
    rest: bool = False
    containers: bool = False
    registry_port: int | None = None
    """Of the registry on 127.0.0.1; None until there is one."""
    ssh_port: int | None = None
    workspace: Path = Field(default_factory=default_workspace)
    mount: tuple[Path, ...] = ()
    clone: Path = ROOT
    job_uid: int | None = None
    """uid of the first user, as whom jobs run; None until the cluster is made."""
    owner: str = ""
    """The user who made the cluster; "" until then."""
    digest: str = ""
    """Digest of the files that its images were built from; "" until the cluster is made."""

    @property
    def has_torch(self) -> bool:
        return self.flavor != "slim"

    @property
    def tag(self) -> str:
        """What the images' tag begins with: two clusters with the same one can have the same images."""
        other = "" if self.torch == "debian" or not self.has_torch else f"-{self.torch}"
        return f"{self.slurm}-{self.flavor}{other}"

    @property
    def shared(self) -> tuple[Path, ...]:
        """Folders of the host that login and the nodes see under the same path."""
        return tuple(each for each in dict.fromkeys((self.workspace, *self.mount)) if can_be_shared(each))

    @property
    def suite(self) -> str:
        return VERSIONS[self.slurm]
