"""Files of a workspace, used on the host. Every job may write there: no link is followed, and no pipe is waited for."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmbed.errors import SlurmbedError

LARGEST = 64 << 20  # bytes


@contextmanager
def opened(workspace: Path, path: str) -> Iterator[int | None]:
    """A descriptor of a file or folder, its path given from the workspace; None if it is not there.

    Raises:
        SlurmbedError: it, or a folder on the way, is a link.
    """
    here = os.open(workspace, os.O_RDONLY)
    try:
        for part in Path(path).parts:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
            os.close(here)
            here = inner
    except FileNotFoundError:
        os.close(here)
        here = None
    except OSError as error:
        os.close(here)
        raise SlurmbedError(f"{workspace / path}: {error.strerror}", "a job may have put a link there") from None
    try:
        yield here
    finally:
        if here is not None:
            os.close(here)


def read(workspace: Path, file: str) -> str | None:
    """The text of a file, its path given from the workspace; None if it is not there.

    Raises:
        SlurmbedError: it, or a folder on the way, is a link; it is no regular file, or larger than 64 MiB.
    """
    with opened(workspace, file) as descriptor:
        if descriptor is None:
            return None
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise SlurmbedError(f"{workspace / file} is no regular file of up to {LARGEST >> 20} MiB")
        with open(descriptor, "rb", closefd=False) as file_object:
            return file_object.read(LARGEST).decode(errors="replace")
