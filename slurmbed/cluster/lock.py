"""One command at a time changes a cluster, or the images: a lock for each engine and name, on this machine."""

import fcntl
import getpass
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from slurmbed.errors import SlurmbedError
from slurmbed.process import INHERITED
from slurmbed.wait import Pending, wait_until

FOLDER = Path("/tmp")  # not $TMPDIR: all users of an engine share it
LONGEST = 3600  # seconds to wait for another command


@contextmanager
def lock(engine: str, name: str, command: str, say: Callable[[str], None], longest: float = 0) -> Iterator[None]:
    """Hold the lock ``name`` of the engine with the id ``engine``. If another process holds it, say so and wait.

    The commands that ``run`` starts hold it too: if this process is killed, the lock is free when they have all ended.

    Args:
        command: a description of this holder, for processes that wait.
        longest: seconds to wait for it; an hour if 0.

    Raises:
        WaitTimeout: it was not free by then; names the holder.
        SlurmbedError: its file cannot be opened.
    """
    descriptor = open_file(FOLDER / f"slurmbed-{re.sub('[^A-Za-z0-9]', '', engine)}-{name}.lock")
    told = ""

    def take() -> None:
        nonlocal told
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_holder(descriptor)
            if holder != told:
                say(f"waiting for {holder}")
                told = holder
            raise Pending(f"held by {holder}") from None

    try:
        wait_until(take, what=f"the lock of {name}", timeout=longest or LONGEST)
        holder = f"slurmbed {command} of {user()}, process {os.getpid()}, since {datetime.now():%H:%M:%S}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        INHERITED.add(descriptor)
        yield
    finally:
        INHERITED.discard(descriptor)
        os.close(descriptor)


def open_file(path: Path) -> int:
    """Open the file for reading and writing; create it, for all users, if it does not exist.

    An existing file must be opened without O_CREAT: in /tmp Linux refuses that for other users' files
    (fs.protected_regular). Never through a link, which another user may have put there.
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SlurmbedError(f"the lock {path} cannot be opened: {error.strerror}", "remove that file") from None
        with suppress(FileExistsError):  # another one was quicker
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def user() -> str:
    """The user who runs this, by name if there is one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return f"uid {os.getuid()}"


def read_holder(descriptor: int) -> str:
    """The holder that the file names, made safe for a terminal: any user can write to the file."""
    text = os.pread(descriptor, 200, 0).decode(errors="replace")
    return "".join(filter(str.isprintable, text)) or "another command"
