"""Where the project's files are: docker-compose.yml, Dockerfile, configs/, scripts/, workspace/."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IS_CLONE = (PACKAGE.parent / "docker-compose.yml").is_file()
ROOT = PACKAGE.parent if IS_CLONE else PACKAGE / "files"  # the wheel has them inside the package
BASE_FILE = ROOT / "docker-compose.yml"
WORKSPACE = ROOT / "workspace"
COMMAND = "make" if IS_CLONE else "slurmbed"
"""What a user types before `up`, in hints: `make up NODES=8` and `slurmbed up NODES=8` are the same."""


def default_workspace() -> Path:
    """The folder that nodes see as /workspace unless a user names another: the clone's, or the current folder."""
    return WORKSPACE if IS_CLONE else Path.cwd()
