"""A user's folder of images: layers unpacked once, and what an image says of its start.

    lock               held while something is added, on all nodes that share the volume
    l/17/              an unpacked layer, ready for overlay. Its path is short: a mount's options have room for 4096
                       characters, and images have up to 127 layers
    layers/DIGEST      a number: the folder of the layer with this digest (of its unpacked archive)
    images/ID/         layers, names, env, entrypoint, cmd, workdir, user; ID is the digest of the image's configuration
    manifests/DIGEST   an ID: the image to which this manifest leads on this machine
    tmp/               what is being made; whoever gets the lock empties it

A name in layers, images or manifests appears by a rename when all it stands for is there. So a pull that is killed
leaves nothing that is taken for an image."""

import os
from contextlib import contextmanager

from imagestore.errors import Refused

PLACE = "/var/lib/container-images"
PATIENCE = 1800  # seconds for which another pull is waited for
FILES_OF_NODE = ("/etc/hosts", "/etc/resolv.conf")  # which every container sees


def place():
    """The caller's store; CONTAINER_IMAGES says another folder."""
    if "CONTAINER_IMAGES" in os.environ:
        return os.environ["CONTAINER_IMAGES"]
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return f"{PLACE}/{name}"


class Store:
    def __init__(self, path):
        self.path = path
        try:
            about = os.lstat(path)
        except OSError:
            hint = "start the cluster with make up CONTAINERS=1 (slurmbed up --containers)"
            raise Refused(f"no folder {path} for images: {hint}") from None
        if about.st_uid != os.geteuid():
            raise Refused(f"{path} belongs to another user")

    def image(self, identity):
        """The folder of the image with this configuration, or None."""
        path = f"{self.path}/images/{bare(identity)}"
        return path if os.path.isdir(path) else None

    def image_of(self, manifest):
        """The folder of the image to which the manifest of this digest leads, or None."""
        identity = self._read(f"manifests/{bare(manifest)}")
        return self.image(identity) if identity else None

    def layer(self, digest):
        """The folder of an unpacked layer, or None."""
        number = self._read(f"layers/{bare(digest)}")
        path = f"{self.path}/l/{number}"
        return path if number and os.path.isdir(path) else None

    @contextmanager
    def locked(self):
        """Alone in the store, on all nodes. The kernel gives the lock back when its holder ends, however that is."""
        handle = os.open(f"{self.path}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._lock(handle)
            for name in ("l", "layers", "images", "manifests", "tmp"):
                os.makedirs(f"{self.path}/{name}", mode=0o700, exist_ok=True)
            self._sweep()
            yield
        finally:
            os.close(handle)

    def _lock(self, handle):
        """Who has the lock may have been stopped, as jobs can be."""
        import fcntl
        import time

        deadline = time.monotonic() + float(os.environ.get("CONTAINER_LOCK_SECONDS", PATIENCE))
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.pread(handle, 100, 0).decode(errors="replace") or "another program"
                    what = f"{holder} has been busy in {self.path} for long: end it, or try again"
                    raise Refused(what) from None
                time.sleep(0.05)  # flock has no time limit of its own
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        except OSError:
            pass  # the disk is full; what makes room on it needs the lock, too

    # What follows is called with the lock held.

    def add_layer(self, digest, fill, *about):
        """fill(FOLDER, *about) makes the layer's files, or raises: then nothing stays."""
        folder = f"{self.path}/tmp/layer.{os.getpid()}"
        try:
            os.mkdir(folder, 0o755)
            os.chmod(folder, 0o755)
            fill(folder, *about)
            number = 1 + max((int(name) for name in os.listdir(f"{self.path}/l")), default=0)
            os.rename(folder, f"{self.path}/l/{number}")
            self._write(f"layers/{bare(digest)}", str(number))
        except BaseException:
            self._sweep()
            raise

    def add_image(self, identity, files):
        """files: NAME -> bytes, but for `layers`: a list of digests."""
        folder = f"{self.path}/tmp/image"
        try:
            os.mkdir(folder, 0o700)
            # Overlay refuses a layer that is there twice; all of the lower one is hidden by the upper one.
            once = reversed(dict.fromkeys(reversed(files["layers"])))
            paths = "".join(f"{self.layer(digest)}\n" for digest in once)
            for name, content in {**files, "layers": os.fsencode(paths)}.items():
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(content)
            os.rename(folder, f"{self.path}/images/{bare(identity)}")
        except BaseException:
            self._sweep()
            raise

    def remember(self, manifest, identity):
        self._write(f"manifests/{bare(manifest)}", bare(identity))

    def call(self, identity, name):
        """Note a name by which the image was pulled, and that no other image has it now."""
        for other in os.listdir(f"{self.path}/images"):
            names = names_of(f"{self.path}/images/{other}")
            wanted = [each for each in names if each != name] + [name] * (other == bare(identity))
            if wanted != names:
                self._write(f"images/{other}/names", "".join(f"{each}\n" for each in wanted))

    def drop_image(self, identity):
        remove_tree(f"{self.path}/images/{identity}")
        for name in os.listdir(f"{self.path}/manifests"):
            if self._read(f"manifests/{name}") == identity:
                os.unlink(f"{self.path}/manifests/{name}")
        images = [f"{self.path}/images/{name}" for name in os.listdir(f"{self.path}/images")]
        used = {layer for image in images for layer in layers_of(image)}
        for name in os.listdir(f"{self.path}/layers"):
            if f"{self.path}/l/{self._read(f'layers/{name}')}" not in used:
                os.unlink(f"{self.path}/layers/{name}")
        self._sweep()

    def drop_layer(self, digest):
        os.unlink(f"{self.path}/layers/{bare(digest)}")
        self._sweep()

    def _sweep(self):
        """Removes what a killed pull left: unfinished things, and finished layers that have no name yet."""
        for name in os.listdir(f"{self.path}/tmp"):
            remove_tree(f"{self.path}/tmp/{name}")
        numbers = {self._read(f"layers/{name}") for name in os.listdir(f"{self.path}/layers")}
        for name in os.listdir(f"{self.path}/l"):
            if name not in numbers:
                remove_tree(f"{self.path}/l/{name}")

    def _read(self, name):
        return read(f"{self.path}/{name}")

    def _write(self, name, text):
        temporary = f"{self.path}/tmp/name"
        with open(temporary, "w") as file:
            file.write(text)
        os.rename(temporary, f"{self.path}/{name}")


def start_config(folder):
    """The part `config` of an image's configuration, from the folder of an image in a store."""

    def words(name):
        with open(f"{folder}/{name}", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]

    def text(name):
        with open(f"{folder}/{name}") as file:
            return file.read()

    return {
        "Env": words("env"),
        "Entrypoint": words("entrypoint"),
        "Cmd": words("cmd"),
        "WorkingDir": text("workdir"),
        "User": text("user"),
    }


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


def names_of(folder):
    """By which this image in a store was pulled."""
    return (read(f"{folder}/names") or "").splitlines()


def layers_of(folder):
    with open(f"{folder}/layers") as file:
        return file.read().splitlines()


def bare(digest):
    return digest.removeprefix("sha256:")


@contextmanager
def beside(target):
    """A new folder next to `target`, which is to be made in it and moved: nodes share volumes, and each node counts its
    processes alone. What is left of it is removed."""
    import tempfile

    parent, name = os.path.split(target.rstrip("/"))
    folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=parent or ".")
    try:
        yield folder
    finally:
        remove_tree(folder)


def remove_tree(path):
    """Also one with folders that their owner may not write to."""
    import shutil

    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        os.chmod(path, 0o700)
        for folder, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(f"{folder}/{name}"):
                    os.chmod(f"{folder}/{name}", 0o700)
        shutil.rmtree(path)
