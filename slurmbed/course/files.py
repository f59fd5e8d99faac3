"""Reading a workspace's files safely on the host. Every job may write there: links are not followed, pipes not read."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurmbed.errors import SlurmbedError

LARGEST = 64 << 20  # bytes


@contextmanager
def opened(workspace: Path, path: str) -> Iterator[int | None]:
    """A file descriptor of a file or folder; None if it does not exist.

    Args:
        path: its path from the workspace.

    Raises:
        SlurmbedError: the path, or a folder in it, is a symbolic link.
    """
    here = opened_beneath(workspace, Path(path).parts)
    try:
        yield here
    finally:
        if here is not None:
            os.close(here)


def opened_beneath(folder: Path, names: Sequence[str]) -> int | None:
    here = os.open(folder, os.O_RDONLY)
    for name in names:
        try:
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = f"{folder.joinpath(*names)}: {error.strerror}"
            raise SlurmbedError(reason, "a job may have put a link there") from None
        finally:
            os.close(here)
        here = inner
    return here


def read(workspace: Path, path: str, since: float = 0.0) -> str | None:
    """The text of a file; None if it does not exist, or was last written before ``since``.

    Args:
        path: its path from the workspace.
        since: seconds since 1970.

    Raises:
        SlurmbedError: the path, or a folder in it, is a symbolic link; the file is not a regular one, or is larger than
            64 MiB.
    """
    with opened(workspace, path) as descriptor:
        if descriptor is None:
            return None
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise SlurmbedError(f"{workspace / path} is not a regular file of at most {LARGEST >> 20} MiB")
        if found.st_mtime < since:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST).decode(errors="replace")
