"""What is in the caller's store: images, and kept containers, called NODE/NAME. Shown, and removed."""

import os
import stat

from imagestore import reference, store
from imagestore.errors import Refused
from imagestore.pull import service

SHORT = 12  # digits of an ID that are shown
LEAST = 6  # that name one


def rows(path):
    """(NAMES, ID or "", BYTES) of each image and kept container in the store at this path."""
    found = []
    for identity in listed(f"{path}/images"):
        folder = f"{path}/images/{identity}"
        size = sum(map(size_of, store.layers_of(folder)))
        found.append((store.names_of(folder) or ["-"], identity[:SHORT], size))
    for node in listed(f"{path}/containers"):
        for name in listed(f"{path}/containers/{node}"):
            found.append(([f"{node}/{name}"], "", size_of(f"{path}/containers/{node}/{name}/upper")))
    return found


def remove(path, names):
    """Images by a name or the first digits of their ID, kept containers by NODE/NAME. Layers that no image has left go
    too. Nothing is removed if one of the names is not there, or is in use."""
    own = store.Store(path)
    with own.locked():
        images, containers = [], []
        for name in names:
            node, _, called = name.partition("/")
            if node in listed(f"{path}/containers") and called in listed(f"{path}/containers/{node}"):
                containers.append(f"{path}/containers/{node}/{called}")
            else:
                images += images_called(path, name)
        for image in images:
            expect_unused(path, image, containers)
        for folder in containers:
            remove_container(folder, f"{path}/tmp/container")
        for image in dict.fromkeys(images):
            own.drop_image(image)


def images_called(path, name):
    try:
        full = str(reference.parse(name, service()))
    except Refused:
        full = name
    found = [
        identity
        for identity in listed(f"{path}/images")
        if full in store.names_of(f"{path}/images/{identity}") or (len(name) >= LEAST and identity.startswith(name))
    ]
    if not found:
        raise Refused(f"{name} is no image or kept container in {path}; see container-image list")
    return found


def expect_unused(path, identity, going):
    for node in listed(f"{path}/containers"):
        for name in listed(f"{path}/containers/{node}"):
            folder = f"{path}/containers/{node}/{name}"
            if folder not in going and store.read(f"{folder}/image") == f"{path}/images/{identity}":
                raise Refused(f"the container {node}/{name} is of {identity[:SHORT]}; remove it first")


def remove_container(folder, aside):
    """Unless a step is in it: its slurmstepd has a lock, on whichever node. The folder goes at once, by a rename to
    `aside`: a step that comes while its files are removed makes another one."""
    import fcntl

    handle = os.open(f"{folder}/running", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(folder, aside)
    except BlockingIOError:
        raise Refused(f"{'/'.join(folder.split('/')[-2:])} runs, or is just being started") from None
    finally:
        os.close(handle)
    store.remove_tree(aside)


def size_of(folder):
    """Bytes on the disk; a file with several links counts once."""
    total, seen = 0, set()
    for parent, _, files in os.walk(folder):
        for name in files:
            about = os.lstat(f"{parent}/{name}")
            if stat.S_ISREG(about.st_mode) and (about.st_nlink == 1 or about.st_ino not in seen):
                seen.add(about.st_ino)
                total += about.st_blocks * 512
    return total


def listed(folder):
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def table(found):
    lines = [("NAME", "ID", "SIZE")]
    lines += [(name, identity, human(size)) for names, identity, size in found for name in names]
    width = max(len(line[0]) for line in lines)
    return "".join(f"{name:<{width}}  {identity:<{SHORT}}  {size:>8}\n" for name, identity, size in lines)


def human(size):
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
