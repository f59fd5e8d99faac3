"""`enroot start`: a container by bubblewrap, on the files of `enroot create` or on a squashfs file."""

import os
import pwd
import re

from imagestore import gpus, squash
from imagestore.enter import PATH, in_memory
from imagestore.errors import Refused
from imagestore.inside import apt_of_root, bind_kind, inside, is_there, make_point, read_text
from imagestore.store import FILES_OF_NODE

ALWAYS = ("TERM", "COLORTERM", "LS_COLORS")
YES = ("y", "yes", "true", "1", "on")


def wish(name):
    """A setting that is on or off, by its variable."""
    return os.environ.get(name, "").lower() in YES


def command_line(root, layers, options, command):
    """bubblewrap's words, those of the command, and the environment. root: the folder with the container's files, in
    which mount points are made; layers: None, or what an overlay is made of, and `root` is the topmost of them."""
    as_root = options.root or wish("ENROOT_REMAP_ROOT")
    writable = options.rw or wish("ENROOT_ROOTFS_WRITABLE")
    user = pwd.getpwuid(os.geteuid())
    home = "/root" if as_root else user.pw_dir
    words = ["bwrap", "--unshare-user", *(["--uid", "0", "--gid", "0"] if as_root else [])]
    if layers:
        for layer in layers:
            words += ["--overlay-src", layer]
        words += ["--tmp-overlay", "/"]
    else:
        words += ["--bind" if writable else "--ro-bind", root, "/"]
    mounts = [("/dev", "/dev", "dev-bind"), ("/proc", "/proc", "bind"), ("/sys", "/sys", "ro-bind")]
    mounts += [("/tmp", "/tmp", "bind"), *((name, name, "ro-bind") for name in FILES_OF_NODE)]
    if wish("ENROOT_MOUNT_HOME"):
        mounts.append((user.pw_dir, home, "bind"))
    else:
        mounts.append(("tmpfs", home, "tmpfs"))
    mounts += [mount(text) for text in options.mount]
    of_gpus, variables = gpus.of_node(inside(layers or root, gpus.FOLDER), lambda path: is_there(layers or root, path))
    if of_gpus and not layers:
        make_point(root, gpus.FOLDER, folder=True)
    words += of_gpus
    if options.rc:
        mounts.append((os.path.realpath(options.rc), "/etc/rc", "ro-bind"))
    for source, target, kind in mounts:
        words += mount_words(root, layers, source, target, kind)
    for name, line in names(user, as_root, home):
        words += data(root, layers, name, known(root, name, line))
    if as_root and (apt := apt_of_root(layers or root)):
        words += data(root, layers, *apt)
    if layers and not writable:
        words += ["--remount-ro", "/"]
    environment = gpus.added(environment_of(root, options, home, user), variables)
    return [*words, "--chdir", "/"], program(root, options, command), environment


def mount_words(root, layers, source, target, kind):
    """The mount point is made in `root`; of layers bubblewrap makes it, in an overlay, but follows no links."""
    if kind != "tmpfs" and not os.path.exists(source):
        raise Refused(f"No such file or directory: {source}")
    is_folder = kind == "tmpfs" or os.path.isdir(source)
    target = inside(layers, target) if layers else make_point(root, target, is_folder)
    return ["--tmpfs", target] if kind == "tmpfs" else [f"--{kind}", source, target]


def mount(text):
    """(SOURCE, TARGET, KIND) of SOURCE:TARGET[:OPTIONS], or of a line as in fstab."""
    fields = text.split() if re.search(r"\s", text.strip()) else text.split(":")
    source, target = fields[0], (fields[1] if len(fields) > 1 and fields[1] else fields[0])
    options = fields[-1].split(",") if len(fields) > 2 else []
    target = os.path.join("/", target)  # enroot's own example is `--mount .:mnt`
    if source == "tmpfs":
        return source, target, "tmpfs"
    return os.path.realpath(source), target, bind_kind(source, "ro" in options)


def names(user, as_root, home):
    """Files in which programs look for the user's name, and the line that names them."""
    number, name = (0, "root") if as_root else (user.pw_uid, user.pw_name)
    group = 0 if as_root else os.getegid()
    return (
        ("/etc/passwd", f"{name}:x:{number}:{group}:{name}:{home}:/bin/sh"),
        ("/etc/group", f"{name}:x:{group}:"),
    )


def known(root, name, line):
    """The container's file with this line instead of those for the same name."""
    lines = [each for each in read_text(root, name).splitlines() if each.split(":")[0] != line.split(":")[0]]
    return "\n".join([line, *lines, ""])


def data(root, layers, target, text):
    """Words that put this text over a file of the container, which stays as it is."""
    target = inside(layers, target) if layers else make_point(root, target, folder=False)
    return ["--ro-bind-data", str(in_memory(text.encode(errors="replace"))), target]


def environment_of(root, options, home, user):
    """The image's, and what the caller asks for: nothing else comes in."""
    found = {name: os.environ[name] for name in ALWAYS if name in os.environ}
    found["PATH"] = PATH
    found.update(entry.split("=", 1) for entry in squash.start_of(root, root)["env"].decode().split("\0")[:-1])
    found.update(HOME=home, USER="root" if home == "/root" else user.pw_name)
    for entry in options.env:
        name, equals, value = entry.partition("=")
        if not name:
            raise Refused(f"Invalid environment variable: {entry}")
        if equals or name in os.environ:
            found[name] = value if equals else os.environ[name]
    return found


def program(root, options, command):
    if options.rc or os.path.lexists(root + inside(root, "/etc/rc")):
        return ["/bin/sh", "/etc/rc", *command]
    return command or ["/bin/sh"]
