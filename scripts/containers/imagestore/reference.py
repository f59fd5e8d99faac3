"""What the user calls an image, taken apart. Nothing is asked of a network or a disk here.

This module is on the path of each start of a container, so it imports nothing, `re` included."""

from imagestore.errors import Refused

HUB = "registry-1.docker.io"
HUB_NAMES = ("docker.io", "index.docker.io", HUB)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
WORD = LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
HEX = frozenset("0123456789abcdef")


class RegistryImage:
    """NAME in the registry HOST, by tag or by digest. plain: over http."""

    def __init__(self, host, name, tag, digest, user, plain):
        self.host, self.name, self.tag, self.digest, self.user, self.plain = host, name, tag, digest, user, plain

    def __str__(self):
        return f"{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


class DockerArchive:
    """A file as `docker save` writes it."""

    def __init__(self, path):
        self.path = path

    def __str__(self):
        return f"docker-archive:{self.path}"


class Layout:
    """A folder in the OCI image layout; tag may be None: the only image there."""

    def __init__(self, path, tag):
        self.path, self.tag = path, tag

    def __str__(self):
        return f"oci:{self.path}" + (f":{self.tag}" if self.tag else "")


class Squash:
    """A squashfs file, as `enroot import` and `container-image save` write it."""

    def __init__(self, path):
        self.path = path

    def __str__(self):
        return self.path


def is_digest(text):
    return isinstance(text, str) and len(text) == 71 and text.startswith("sha256:") and HEX.issuperset(text[7:])


def parse(text, service=None):
    """The image that `text` names. service: (port, "host:port") of the cluster's own registry, which users call
    localhost:PORT as on the host. Raises Refused."""
    if not text or "\0" in text or "\n" in text:
        raise Refused("an image has a name, on one line")
    if text.startswith("docker-archive:"):
        return DockerArchive(needed(text[len("docker-archive:") :].removeprefix("//"), text))
    if text.startswith("oci:"):
        path, colon, tag = needed(text[len("oci:") :], text).rpartition(":")
        if not colon or "/" in tag:
            path, tag = path + colon + tag, None
        return Layout(needed(path, text), tag)
    if text.startswith("docker://"):
        return registry_image(text[len("docker://") :], text, service)
    if "://" in text:
        raise Refused(f"{text}: use docker://, docker-archive:FILE, oci:FOLDER or a file of the type .sqsh")
    if text.endswith(".sif"):
        raise Refused(
            f"{text}: images of Apptainer are not supported; convert it where Apptainer is: apptainer build --sandbox "
            f"FOLDER {text}, then mksquashfs FOLDER FILE.sqsh"
        )
    if text.startswith(("/", ".", "~")) or text.endswith((".sqsh", ".squashfs")):
        return Squash(text)
    return registry_image(text, text, service)


def needed(part, text):
    if not part:
        raise Refused(f"{text}: the path is missing")
    return part


def registry_image(rest, text, service):
    user = digest = None
    tag = "latest"
    if "@sha256:" in rest:
        rest, _, digest = rest.rpartition("@")
        if not is_digest(digest):
            raise Refused(f"{text}: sha256: and 64 digits of 0-9a-f are a digest")
    if "@" in rest:
        user, _, rest = rest.partition("@")
    if "#" in rest:
        host, _, rest = rest.partition("#")
    else:
        first, slash, others = rest.partition("/")
        host, rest = (first, others) if slash and is_host(first) else ("", rest)
    name, colon, given = rest.partition(":")
    if colon:
        tag = given
        if not (0 < len(tag) <= 128 and WORD.union(".-").issuperset(tag) and tag[0] in WORD):
            raise Refused(f"{text}: {tag!r} is no tag")
    if host in ("", *HUB_NAMES):
        host = HUB
        if "/" not in name:
            name = f"library/{name}"
    if not is_name(name):
        raise Refused(f"{text}: {name!r} is no name of an image (small letters, digits, '.', '_', '-' and '/')")
    if not (WORD.union(".-:[]").issuperset(host) and is_port(host)):
        raise Refused(f"{text}: {host!r} is no registry (HOST or HOST:PORT)")
    address, _, port = host.rpartition(":")
    if service and address in LOOPBACK and port == service[0]:
        return RegistryImage(service[1], name, tag, digest, user, plain=True)
    plain = (address if port.isdigit() else host) in LOOPBACK or (bool(service) and host == service[1])
    return RegistryImage(host, name, tag, digest, user, plain)


def is_host(first):
    """Docker's rule: alice/model is a name on Docker Hub, alice.org/model is not."""
    return "." in first or ":" in first or first == "localhost"


def is_port(host):
    if host.endswith("]"):
        return True
    name, colon, port = host.rpartition(":")
    return not colon or (bool(name) and port.isascii() and port.isdigit() and 0 < int(port) < 65536)


def is_name(name):
    words = name.split("/")
    return len(name) <= 255 and all(
        word and LOWER.union("._-").issuperset(word) and word[0] in LOWER and word[-1] in LOWER and ".." not in word
        for word in words
    )
