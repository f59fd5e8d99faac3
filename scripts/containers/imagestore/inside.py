"""Paths as a container sees them, in the folder of its root."""

import os
import stat

from imagestore.errors import Refused
from imagestore.merged import visible

MOST_LINKS = 40


def inside(root, path):
    """`path` without links, as the container would follow them: an absolute one starts at its root, and `..` does not
    lead out of it. What is not there yet is left as it is. root: a folder, or the layers of one, lowest first."""
    layers = [root] if isinstance(root, str) else root
    left = path.split("/")[::-1]
    done = []
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            target = link_in(layers, [*done, part])
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > MOST_LINKS:
                raise Refused(f"{path}: too many links in the container")
            if target.startswith("/"):
                done = []
            left += target.split("/")[::-1]
    return "/" + "/".join(done)


def link_in(layers, parts):
    """Where the link leads that the layers show under this name; None if it is none. Its parents are no links."""
    folders = layers
    for part in parts[:-1]:
        below = [f"{folder}/{part}" for folder in reversed(folders) if os.path.lexists(f"{folder}/{part}")]
        folders = visible(below)
    for folder in reversed(folders):
        try:
            return os.readlink(f"{folder}/{parts[-1]}")
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def is_there(root, path):
    """Whether the container has something under this path. root: as above."""
    layers = [root] if isinstance(root, str) else root
    path = inside(layers, path)
    for layer in reversed(layers):
        try:
            return not stat.S_ISCHR(os.lstat(layer + path).st_mode)  # the mark of something removed
        except (FileNotFoundError, NotADirectoryError):
            continue
    return False


def bind_kind(source, is_readonly):
    """Which of bubblewrap's options binds this path of the node: in most of its mounts devices cannot be opened."""
    source = os.path.realpath(source)
    if f"{source}/".startswith("/dev/") and not (is_readonly and os.path.isdir(source)):
        return "dev-bind"
    return "ro-bind" if is_readonly else "bind"


def apt_of_root(layers):
    """(PATH, TEXT) of what apt-get needs to work for a user who is called root but may become nobody else; None: the
    image has no apt. layers: as above."""
    if not is_there(layers, "/etc/apt/apt.conf.d"):
        return None
    return "/etc/apt/apt.conf.d/90-without-sandbox", 'APT::Sandbox::User "root";\n'


def make_point(root, path, folder):
    """Makes what something can be mounted on, where nothing is: a folder, or a file. Returns the path without links."""
    path = inside(root, path)
    place = root + path
    if not os.path.lexists(place):
        os.makedirs(place if folder else os.path.dirname(place), mode=0o755, exist_ok=True)
        if not folder:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))
    return path


def read_text(root, path):
    """A small text file of the container, or the empty text."""
    try:
        with open(root + inside(root, path), errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
