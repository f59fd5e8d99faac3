"""Images in one squashfs file, as enroot has them. Read and written with Debian's squashfs-tools.

What the image says of its start is in etc/container-image.json, and for other readers in etc/environment and etc/rc as
enroot's documentation describes them."""

import json
import os
import shlex
import stat
import subprocess
import tarfile
import time

from imagestore import manifest, merged
from imagestore.blobs import digest_of
from imagestore.errors import NO_ROOM, Refused
from imagestore.store import beside

START = "etc/container-image.json"
OF_START = (START, "etc/environment", "etc/rc")
# A program that unpacks or packs ends with its caller, however that ends: it would write where another one unpacks.
WITH_CALLER = ("setpriv", "--pdeathsig", "KILL")
FASTEST = ("-comp", "zstd", "-Xcompression-level", "1")


def pull(image, store):
    """The folder of the image in this file. The file is unpacked once, until it changes."""
    path = os.path.realpath(os.path.expanduser(image.path))
    try:
        about = os.stat(path)
    except OSError as error:
        raise Refused(f"{image.path}: {error.strerror}") from None
    if not stat.S_ISREG(about.st_mode):
        raise Refused(f"{image.path} is no file")
    identity = digest_of(f"squash {path} {about.st_ino} {about.st_size} {about.st_mtime_ns}".encode())
    if folder := store.image(identity):
        return folder
    with store.locked():
        if not store.image(identity):
            if not store.layer(identity):
                store.add_layer(identity, unpack, path)
            store.add_image(identity, {**start_of(store.layer(identity), image.path), "layers": [identity]})
            store.call(identity, path)
        return store.image(identity)


def unpack(folder, path):
    run(
        ["unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-force", "-excludes", "-dest", folder, path, "dev/*"],
        path,
    )
    tidy(folder, path)


def tidy(folder, path):
    """As layers are: no devices, no setuid bits, and the owner may read and write all."""
    os.chmod(folder, 0o755)
    for parent, names, files in os.walk(folder):
        for name in names + files:
            file = f"{parent}/{name}"
            mode = os.lstat(file).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
                raise Refused(f"{path}: {os.path.relpath(file, folder)!r} is a device")
            if stat.S_ISDIR(mode):
                os.chmod(file, (mode & 0o1777) | 0o700)
            elif not stat.S_ISLNK(mode) and mode & 0o7600 != 0o600:
                os.chmod(file, (mode & 0o777) | 0o600)


def start_of(folder, what):
    """What the store keeps of an image's start, from the files in it."""
    told = read(folder, START)
    if told is not None:
        return manifest.start_files(manifest.parse_json(told, f"{START} in {what}"), what)
    lines = (read(folder, "etc/environment") or b"").decode(errors="replace").splitlines()
    environment = [line for line in lines if "=" in line[1:] and not line.startswith("#") and "\0" not in line]
    entrypoint = ["/bin/sh", "/etc/rc"] if read(folder, "etc/rc") is not None else []
    return manifest.start_files({"Env": environment, "Entrypoint": entrypoint}, what)


def read(folder, name):
    """A small file in etc/, which may be a link that leads anywhere: then it is not read."""
    try:
        etc = os.open(f"{folder}/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        handle = os.open(os.path.basename(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=etc)
    except OSError:
        return None
    finally:
        os.close(etc)
    with open(handle, "rb") as file:
        return file.read(1 << 20) if stat.S_ISREG(os.fstat(handle).st_mode) else None


def write(layers, config, target, skip=frozenset(), options=FASTEST):
    """Makes the squashfs file `target` of these layers, lowest first, and of the part `config` of a configuration.
    The file appears when it is whole."""
    try:
        with beside(target) as folder:
            pack(layers, config, f"{folder}/image", target, skip, options)
            os.rename(f"{folder}/image", target)
    except OSError as error:
        raise Refused(f"{target}: {error.strerror}") from None


def pack(layers, config, file, target, skip, options):
    """What `write` does, into `file`. target: what it will be called."""
    always = ("-tar", "-noappend", "-no-progress", "-quiet", "-all-root")
    command = [*WITH_CALLER, "mksquashfs", "-", file, *always, *options]
    try:
        packer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError as error:
        raise Refused(f"mksquashfs does not start: {error.strerror}; install squashfs-tools") from None
    try:
        with packer.stdin, tarfile.open(fileobj=packer.stdin, mode="w|", bufsize=1 << 20) as archive:
            fill(archive, layers, config, skip)
    except BrokenPipeError:
        pass  # it says why
    except BaseException:
        packer.kill()
        raise
    finally:
        said = packer.stderr.read().decode(errors="replace")
        packer.wait()
    if packer.returncode:
        raise Refused(f"{target}: mksquashfs: {reason(said)}")


def fill(archive, layers, config, skip):
    links = {}
    etc = False
    for name, path, status in merged.entries(layers, skip=skip | frozenset(OF_START)):
        etc = etc or name == "etc"
        member = archive.gettarinfo(path, arcname=name)
        if member is None:
            continue  # a socket
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            # tarfile takes links for such by their number alone, which is not unique where a layer is another disk's.
            twin = links.setdefault((status.st_dev, status.st_ino), name)
            member.type, member.linkname = (tarfile.REGTYPE, "") if twin == name else (tarfile.LNKTYPE, twin)
            member.size = status.st_size if twin == name else 0
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.isreg():
            with open(path, "rb") as file:
                archive.addfile(member, file)
        else:
            archive.addfile(member)
    if not etc:
        add_folder(archive, "etc")
    environment = "".join(f"{line}\n" for line in config["Env"] if "\n" not in line)
    for name, text in zip(OF_START, (json.dumps(config, indent=1) + "\n", environment, rc(config)), strict=True):
        add_text(archive, name, text)


def add_folder(archive, name):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
    archive.addfile(member)


def add_text(archive, name, text):
    import io

    content = text.encode(errors="surrogateescape")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o755 if name.endswith("rc") else 0o644, int(time.time())
    archive.addfile(member, io.BytesIO(content))


def rc(config):
    """A script that starts the image: its entrypoint with the caller's arguments, or with the image's own."""
    entrypoint = shlex.join(config["Entrypoint"])
    command = shlex.join(config["Cmd"]) or ("" if entrypoint else "/bin/sh")
    folder = f"cd {shlex.quote(config['WorkingDir'])} || exit 1\n" if config["WorkingDir"] else ""
    return (
        "#!/bin/sh\n"
        "# Made from the image: its WORKDIR, ENTRYPOINT and CMD.\n"
        f"{folder}"
        f'if [ $# -gt 0 ]; then exec {entrypoint} "$@"; fi\n'
        f"exec {entrypoint} {command}\n"
    )


def run(command, what):
    try:
        done = subprocess.run([*WITH_CALLER, *command], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise Refused(f"{command[0]} does not start: {error.strerror}; install squashfs-tools") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise Refused(f"{what}: {command[0]}: {reason(said)}")


def reason(said):
    """Of all that a program complained of: that the disk is full, or else the last line."""
    for number in NO_ROOM:
        if os.strerror(number) in said:
            return os.strerror(number)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"


def mounted_in(pid):
    """What is mounted in the container of this process, besides its root: names relative to it."""
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            points = [line.split()[4] for line in file]
    except OSError as error:
        raise Refused(f"process {pid}: {error.strerror}") from None
    plain = [point.decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape") for point in points]
    return frozenset(point.strip("/") for point in plain) - {""}
