"""A Python project or a wheel, installed for jobs on all nodes."""

import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from slurmbed.cluster.cluster import Cluster
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.process import run

PROJECT_FILES = ("pyproject.toml", "setup.py")
# The wheel is always installed again, because it may have changed; its dependencies are not.
INSTALL = """
export HOME=/home/$(id -un)
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cat >"$folder/$1"
install() { python3 -m pip install --quiet --disable-pip-version-check --user --break-system-packages "$@"; }
install --no-index --no-deps --force-reinstall "$folder/$1"
[ "$2" = alone ] || install "$folder/$1"
"""


def load(cluster: Cluster, path: Path, user: str = "", dependencies: bool = True) -> str:
    """Install the wheel, or the project in the folder ``path``. Returns the name of the wheel.

    It goes into the user's packages below /home, which all nodes share and python3 of every flavor searches.

    Args:
        user: default: the cluster's first user.
        dependencies: let pip download those that the nodes lack.

    Raises:
        UsageError: ``path`` is neither.
        SlurmbedError: the project could not be built, or pip could not install the wheel; with pip's last lines.
    """
    require_package(path)
    if path.is_file():
        install(cluster, path, user, dependencies)
        return path.name
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(path, Path(folder))
        install(cluster, wheel, user, dependencies)
        return wheel.name


def require_package(path: Path) -> None:
    """UsageError unless ``path`` is a wheel, or a folder with a Python project."""
    is_wheel = path.is_file() and path.suffix == ".whl"
    if not (is_wheel or any((path / name).is_file() for name in PROJECT_FILES)):
        raise UsageError(f"{path} is neither a wheel nor a folder with a pyproject.toml", "name one of the two")


def build(project: Path, folder: Path) -> Path:
    """The wheel of a project, in ``folder``."""
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    elif shutil.which("uv"):
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir"]
    else:
        raise SlurmbedError(f"{project}: pip is missing", "build it elsewhere, then: slurmbed load X.whl")
    run([*command, str(folder), str(project)], timeout=600).check("the project could not be built")
    return next(folder.glob("*.whl"))


def install(cluster: Cluster, wheel: Path, user: str, dependencies: bool) -> None:
    arguments = [wheel.name, "with-dependencies" if dependencies else "alone"]
    argv = cluster.exec_argv(["sh", "-ec", INSTALL, "sh", *arguments], user, ["--interactive"])
    hint = "if the nodes reach no package index: --no-deps" if dependencies else ""
    with wheel.open("rb") as content:
        run(argv, timeout=900, stdin=content).check(hint)
