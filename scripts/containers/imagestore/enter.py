"""Becomes a command in a container, in this very process: signals and the exit status are the command's own.

bubblewrap stays as a parent of what it starts, and would take its signals. So it starts a holder of the namespaces,
which this process enters; the holder ends with the last process that has its pipe open: those of the container."""

import fcntl
import os

from imagestore.errors import Refused

HOLDER = "/usr/local/libexec/container-holder"  # scripts/container-holder.c says what it does with descriptors 3 and 4
AS_ROOT = "/usr/local/libexec/container-as-root"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where there is none, as with Docker
FREE = 10  # descriptors from here on are no others'


def start(words, command, environment):
    """words: bubblewrap's, without a command. Does not return."""
    holder = inherited(os.open(os.environ.get("CONTAINER_HOLDER", HOLDER), os.O_RDONLY))
    bubblewrap = find("bwrap")
    report, report_end = map(inherited, os.pipe())
    hold_end, hold = map(inherited, os.pipe())
    if os.fork() == 0:
        # Nobody's child: the command would have a child that it does not know.
        if os.fork() == 0:
            os.dup2(report_end, 3)
            os.dup2(hold_end, 4)
            for handle in (report, report_end, hold_end, hold):
                os.close(handle)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.execve(bubblewrap, [*words, "--", f"/proc/self/fd/{holder}"], {})
        os._exit(0)
    os.wait()
    os.close(report_end)
    os.close(hold_end)
    told = b""
    while not told.endswith(b"\0\0"):
        piece = os.read(report, 4096)
        if not piece:
            raise Refused("The container did not start; see above for what bubblewrap says")
        told += piece
    os.close(report)
    join(told.split(b"\0")[0].decode(), command, environment)


def join(pid, command, environment):
    """Becomes the command where this process is. Does not return."""
    words = [find("nsenter"), f"--target={pid}", "--user", "--mount", "--preserve-credentials", "--", *command]
    with open(f"/proc/{pid}/uid_map") as file:
        first, _, count = file.read().split()[:3]
    if (first, count) == ("0", "1"):
        words = [AS_ROOT, *words]
    os.execve(words[0], words, environment)


def inherited(handle):
    """The same as a descriptor that a new program gets, out of the way of those with a meaning."""
    moved = fcntl.fcntl(handle, fcntl.F_DUPFD, FREE)
    os.close(handle)
    return moved


def in_memory(text):
    """A descriptor, as above, of a file that has this text and no name."""
    handle = inherited(os.memfd_create("text"))
    os.write(handle, text)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def find(program):
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        if os.access(f"{folder}/{program}", os.X_OK):
            return f"{folder}/{program}"
    raise Refused(f"Command not found: {program}")
