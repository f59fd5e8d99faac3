"""Unpacks the archive of one layer into a folder, ready to be a lower layer of an overlay mount.

Written with tarfile and folder handles instead of a call of tar: whiteouts become what overlay understands in the same
pass, and each part of a name is opened below the one before it without following links. So nothing is ever written
outside of the folder, whatever links the archive has made before; a name that leads through a link is refused.

It needs no rights and no user namespace. All files are the caller's; setuid and setgid bits, extended attributes and
device files stay out. The owner may always read and write, or the store could not be copied or removed.
https://github.com/opencontainers/image-spec/blob/main/layer.md, https://docs.kernel.org/filesystems/overlayfs.html"""

import errno
import os
import stat
import tarfile

from imagestore.blobs import PIECE
from imagestore.errors import NO_ROOM, Refused

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
OF_AUFS = ".wh..wh."
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(stream, folder, what):
    """All members of the archive that `stream` reads. Raises Refused, or OSError where the disk is full."""
    unpacker = Unpacker(folder)
    name = None
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", bufsize=PIECE, encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                name = member.name
                unpacker.add(member, archive)
        unpacker.finish()
    except Refused as error:
        raise Refused(f"{what}: {name!r}: {error}" if name is not None else f"{what}: {error}") from None
    except tarfile.ReadError as error:
        raise Refused(f"{what} is no archive: {error}") from None
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise Refused(f"{what} is no archive: {error}".replace("\n", " ")) from None
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise Refused(f"{what}: {name!r}: {error.strerror}") from None
    finally:
        unpacker.close()


class Unpacker:
    def __init__(self, folder):
        self.chain = [("", os.open(folder, FOLDER))]  # open folders: the root, one in it, one in that, ...
        self.times = {}

    def close(self):
        for _, handle in self.chain:
            os.close(handle)

    def add(self, member, archive):
        parts = split(member.name)
        if not parts:
            if member.isdir():
                os.fchmod(self.chain[0][1], folder_mode(member))
            return
        *parents, name = parts
        if any(part.startswith(OF_AUFS) for part in parts) and name != OPAQUE:
            return  # notes of an old storage driver to itself
        if any(part.startswith(WHITEOUT) for part in parents):
            raise Refused("lies below the mark of something removed")
        if (member.ischr() or member.isblk()) and parts[0] == "dev" and len(parts) > 1:
            return  # a container gets the node's /dev
        folder = self.folder(parents)
        if name == OPAQUE:
            os.setxattr(folder, "user.overlay.opaque", b"y")
        elif name.startswith(WHITEOUT):
            self.remove(folder, name[len(WHITEOUT) :])
        elif member.isdir():
            self.make_folder(folder, name, member)
            self.times[tuple(parts)] = seconds(member)
        elif member.isreg():
            self.make_room(folder, name)
            write_file(folder, name, member, archive)
        elif member.issym():
            self.make_room(folder, name)
            os.symlink(member.linkname, name, dir_fd=folder)
            os.utime(name, (seconds(member),) * 2, dir_fd=folder, follow_symlinks=False)
        elif member.islnk():
            self.link(parts, split(member.linkname))
        elif member.isfifo():
            self.make_room(folder, name)
            os.mkfifo(name, (member.mode & 0o777) | 0o600, dir_fd=folder)
        else:
            raise Refused("is a device" if member.isdev() else f"is of the unknown type {member.type!r}")

    def finish(self):
        """The times of folders, which what was put into them has changed since."""
        for parts in sorted(self.times, reverse=True):
            os.utime(self.folder(parts), (self.times[parts],) * 2)

    def folder(self, parts):
        """A handle of this folder. Those that the archive has not named are made, as other programs make them."""
        same = 0
        while same < min(len(parts), len(self.chain) - 1) and self.chain[same + 1][0] == parts[same]:
            same += 1
        while len(self.chain) > same + 1:
            os.close(self.chain.pop()[1])
        for part in parts[same:]:
            handle = self.chain[-1][1]
            try:
                below = os.open(part, FOLDER, dir_fd=handle)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=handle)
                below = os.open(part, FOLDER, dir_fd=handle)
                os.fchmod(below, 0o755)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused(f"lies below {part!r}, which is a link or a file") from None
                raise
            self.chain.append((part, below))
        return self.chain[-1][1]

    def make_room(self, folder, name):
        """Takes away an earlier member of this name. True: that was a mark of something removed."""
        found = kind(folder, name)
        if found is None:
            return False
        if stat.S_ISDIR(found):
            raise Refused("is a folder and something else")
        os.unlink(name, dir_fd=folder)
        return stat.S_ISCHR(found)

    def make_folder(self, folder, name, member):
        found = kind(folder, name)
        removed = False
        if found is None or not stat.S_ISDIR(found):
            removed = self.make_room(folder, name)
            os.mkdir(name, 0o700, dir_fd=folder)
        handle = os.open(name, FOLDER, dir_fd=folder)
        try:
            os.fchmod(handle, folder_mode(member))
            if removed:  # and made anew: what lower layers have in it is gone
                os.setxattr(handle, "user.overlay.opaque", b"y")
        finally:
            os.close(handle)

    def remove(self, folder, name):
        """What lower layers have under this name is not there any more: a device 0:0, which anybody may make."""
        if name in ("", ".", ".."):
            raise Refused("is the mark of nothing")
        found = kind(folder, name)
        if found is None:
            os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=folder)
        elif stat.S_ISDIR(found):
            handle = os.open(name, FOLDER, dir_fd=folder)
            os.setxattr(handle, "user.overlay.opaque", b"y")
            os.close(handle)

    def link(self, parts, target):
        if not target or parts == target:
            raise Refused("is a link to nothing")
        *parents, last = target
        folder = self.folder(parents)
        found = kind(folder, last)
        if found is None or stat.S_ISDIR(found) or stat.S_ISCHR(found):
            raise Refused(f"is a hard link to {'/'.join(target)!r}, which is no file of this layer")
        source = os.dup(folder)  # the next line closes it
        try:
            *parents, name = parts
            folder = self.folder(parents)
            self.make_room(folder, name)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)


def split(name):
    if name.startswith("/"):
        raise Refused("is an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused("climbs out with '..'")
    return parts


def kind(folder, name):
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None


def folder_mode(member):
    return (member.mode & 0o1777) | 0o700


def seconds(member):
    return min(max(int(member.mtime), 0), 1 << 33)


def write_file(folder, name, member, archive):
    handle = os.open(name, NEW_FILE, 0o600, dir_fd=folder)
    with open(handle, "wb", buffering=0) as file:
        content = archive.extractfile(member).raw  # which seeks forward, although the archive is a stream
        for start, size in member.sparse or [(0, member.size)]:
            content.seek(start)
            file.seek(start)
            write_all(file, content, size)
        file.truncate(member.size)
        os.fchmod(handle, (member.mode & 0o777) | 0o600)
        os.utime(handle, (seconds(member),) * 2)


def write_all(file, content, left):
    while left:
        piece = content.read(min(left, 1 << 20))
        if not piece:
            raise Refused("the archive ends in it")
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]
        left -= len(piece)
