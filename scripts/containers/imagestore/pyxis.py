"""Containers of `srun --container-name=NAME`, which enroot's commands call pyxis_NAME: those of this node."""

import os

from imagestore import stock, store
from imagestore.errors import Refused

PREFIX = "pyxis_"


def here():
    """The folder that has them."""
    return f"{store.place()}/containers/{os.uname().nodename}"


def names():
    kept = [name for name in stock.listed(here()) if not name.startswith(".")]
    return [PREFIX + name for name in kept if os.path.exists(f"{here()}/{name}/image")]


def folder_of(name):
    """The folder of the container with this name; None: there is none."""
    return f"{here()}/{name.removeprefix(PREFIX)}" if name in names() else None


def create(name, file, overwrites):
    """A container of this squashfs file, as the first step that asks for it makes one."""
    from imagestore.pull import pull

    image = pull(os.path.realpath(file))
    folder = f"{here()}/{name.removeprefix(PREFIX)}"
    if os.path.exists(f"{folder}/image"):
        if not overwrites:
            raise Refused(f"File already exists: {folder}")
        remove(name)
    own = store.Store(store.place())
    with own.locked():
        made = f"{own.path}/tmp/container"
        for part in ("upper", "work"):
            os.makedirs(f"{made}/{part}", mode=0o700)
        with open(f"{made}/image", "w") as text:
            text.write(image)
        os.makedirs(here(), mode=0o700, exist_ok=True)
        os.rename(made, folder)


def remove(name):
    stock.remove(store.place(), [f"{os.uname().nodename}/{name.removeprefix(PREFIX)}"])


def content(folder):
    """Its layers, and how it starts."""
    image = store.read(f"{folder}/image")
    return [*store.layers_of(image), f"{folder}/upper"], store.start_config(image)


def processes(folder):
    """Those of its steps: in a mount namespace whose number is the last one in a line of a file that is locked while
    they run. Later the kernel gives the number to another one."""
    import fcntl

    found = []
    try:
        with open(f"{folder}/running") as file:
            spaces = {line.split()[-1] for line in file.read().rpartition("\0")[2].splitlines()}
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return found
    except FileNotFoundError:
        return found
    except BlockingIOError:
        pass
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if str(os.stat(f"/proc/{pid}/ns/mnt").st_ino) in spaces:
                found.append(pid)
        except OSError:
            continue  # another user's, or ended
    return found
