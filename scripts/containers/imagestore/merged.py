"""The files of several layers as the container sees them, without a mount."""

import os
import stat


def entries(layers, name="", skip=frozenset()):
    """(NAME, PATH, STATUS) of each file that is seen; layers: paths of folders, lowest first. A folder comes before
    what is in it. skip: names of folders whose content stays out, and of files that stay out."""
    seen = {}
    for layer in reversed(layers):
        for file in sorted(os.listdir(layer)):
            seen.setdefault(file, []).append(f"{layer}/{file}")
    for file, paths in sorted(seen.items()):
        below = f"{name}/{file}" if name else file
        status = os.lstat(paths[0])
        if stat.S_ISCHR(status.st_mode) or (below in skip and not stat.S_ISDIR(status.st_mode)):
            continue  # the mark of something removed
        yield below, paths[0], status
        if stat.S_ISDIR(status.st_mode) and below not in skip:
            yield from entries(visible(paths), below, skip)


def visible(paths):
    """Of the same folder in several layers, topmost first, those that are seen; lowest first."""
    found = []
    for path in paths:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            break
        found.insert(0, path)
        if opaque(path):
            break
    return found


def opaque(path):
    try:
        return os.getxattr(path, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def copy(layers, target):
    """Makes the folder `target` with all that is seen. Files are copied: to write to them changes no layer."""
    import shutil

    os.mkdir(target, 0o755)
    times, links = [], {}
    for name, path, status in entries(layers):
        new, kind = f"{target}/{name}", stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            os.mkdir(new)
            os.chmod(new, stat.S_IMODE(status.st_mode))
            times.append((new, status.st_mtime))
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(path), new)
        elif kind == stat.S_IFIFO:
            os.mkfifo(new, stat.S_IMODE(status.st_mode))
        elif kind == stat.S_IFREG:
            twin = links.setdefault((status.st_dev, status.st_ino), new)
            if twin != new:
                os.link(twin, new)
            else:
                shutil.copyfile(path, new)
                shutil.copystat(path, new)
    for new, time in reversed(times):
        os.utime(new, (time, time))
