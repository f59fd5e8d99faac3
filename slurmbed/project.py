"""Where the project's files are: docker-compose.yml, Dockerfile, configs/, scripts/, workspace/."""

import os
import shlex
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IS_CLONE = (PACKAGE.parent / "docker-compose.yml").is_file()
ROOT = PACKAGE.parent if IS_CLONE else PACKAGE / "files"  # the wheel has them inside the package
BASE_FILE = ROOT / "docker-compose.yml"
WORKSPACE = ROOT / "workspace"
DEFAULT_NAME = "slurmbed"
"""The cluster that commands use if neither --name nor SLURMBED_NAME names one."""


def default_workspace() -> Path:
    """The folder that nodes see as /workspace unless a user names another: the clone's, or the current folder."""
    return WORKSPACE if IS_CLONE else Path.cwd()


def command(target: str, **options: object) -> str:
    """A command for hints, as users type it: `make up NODES=8` in a clone, `slurmbed up --nodes 8` if installed.

    Args:
        options: settings, and options of the command. None and "" are left out, and so is the name of the cluster that
            commands use by default.
    """
    given = {key: value for key, value in options.items() if value not in (None, "")}
    if given.get("name") == (os.environ.get("SLURMBED_NAME") or DEFAULT_NAME):
        del given["name"]
    words = [word for key, value in given.items() for word in option_words(key, value)]
    return shlex.join(["make" if IS_CLONE else "slurmbed", target, *words])


def option(name: str, value: object = None) -> str:
    """An option for messages, as users type it: `NODES=8` in a clone, `--nodes 8` if installed; without a value its
    name alone, `NODES` or `--nodes`.
    """
    return " ".join(option_words(name, value))


def option_words(name: str, value: object) -> list[str]:
    if IS_CLONE:
        return [name.upper() if value is None else f"{name.upper()}={int(value) if isinstance(value, bool) else value}"]
    dashed = name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return [f"--no-{dashed}" if value is False else f"--{dashed}"]
    return [f"--{dashed}", str(value)]
