"""Manifests, indexes and configurations of images, checked field by field: they come from anywhere.

https://github.com/opencontainers/image-spec, and Docker's schema 2, which has the same fields."""

import json
import os

from imagestore.errors import Refused
from imagestore.reference import is_digest

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
MOST_LAYERS = 127


class Blob:
    """What a manifest says of a blob. size: bytes."""

    def __init__(self, digest, size):
        self.digest, self.size = digest, size


class Image:
    """One image. blobs: of the layers, lowest first; layers: the digests of their unpacked archives; files: what the
    store keeps beside the layers."""

    def __init__(self, identity, layers, files):
        self.identity, self.layers, self.files = identity, layers, files


def parse_json(content, what):
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(f"{what} is no JSON") from None
    if not isinstance(parsed, dict):
        raise Refused(f"{what} is no JSON object")
    return parsed


def is_index(parsed):
    return parsed.get("mediaType") in INDEXES or isinstance(parsed.get("manifests"), list)


def for_this_machine(index, what):
    """The blob of the index's manifest for Linux on this machine's processor."""
    here = MACHINES.get(os.uname().machine, os.uname().machine)
    others = set()
    for entry in listed(index, "manifests", what):
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict):
            continue
        system = (platform.get("os"), platform.get("architecture"))
        if system == ("linux", here):
            return blob(entry, what)
        others.add(f"{system[0]}/{system[1]}")
    there = ", ".join(sorted(others - {"unknown/unknown"})) or "nothing"
    raise Refused(f"{what} has no image for linux/{here}; it has {there}")


def blobs(parsed, what):
    """The blobs of a manifest: of its configuration, and of its layers, lowest first."""
    if parsed.get("schemaVersion") != 2:
        raise Refused(f"{what} has schemaVersion {parsed.get('schemaVersion')!r}, not 2: build and push the image anew")
    layers = listed(parsed, "layers", what)
    if len(layers) > MOST_LAYERS:
        raise Refused(f"{what} has {len(layers)} layers, more than {MOST_LAYERS}")
    return blob(parsed.get("config"), what), [blob(layer, what) for layer in layers]


def blob(entry, what):
    if not isinstance(entry, dict) or not is_digest(entry.get("digest")):
        raise Refused(f"{what} has an entry without a sha256 digest")
    size = entry.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refused(f"{what} has an entry without a size")
    return Blob(entry["digest"], size)


def image(identity, content, layers, what):
    """The image with this configuration. layers: how many its manifest has."""
    parsed = parse_json(content, f"the configuration of {what}")
    rootfs = parsed.get("rootfs")
    if not isinstance(rootfs, dict):
        raise Refused(f"{what} is no image of a container")
    digests = listed(rootfs, "diff_ids", what)
    if not all(map(is_digest, digests)):
        raise Refused(f"{what} has a layer without a sha256 digest")
    if len(digests) != layers:
        raise Refused(f"{what} has {layers} layers, and its configuration {len(digests)}")
    if len(digests) > MOST_LAYERS:
        raise Refused(f"{what} has {len(digests)} layers, more than {MOST_LAYERS}")
    return Image(identity, digests, start_files(parsed.get("config") or {}, what))


def start_files(config, what):
    """What an image's configuration says of its start, as the store keeps it."""
    if not isinstance(config, dict):
        raise Refused(f"{what} has a configuration that is no object")
    environment = words(config, "Env", what)
    if not all("=" in entry[1:] for entry in environment):
        raise Refused(f"{what} has an Env entry that is not NAME=VALUE")
    return {
        "env": ended_by_nul(environment),
        "entrypoint": ended_by_nul(words(config, "Entrypoint", what)),
        "cmd": ended_by_nul(words(config, "Cmd", what)),
        "workdir": text(config, "WorkingDir", what),
        "user": text(config, "User", what),
    }


def ended_by_nul(entries):
    return b"".join(entry.encode(errors="surrogateescape") + b"\0" for entry in entries)


def words(config, name, what):
    entries = config.get(name) or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) and clean(entry) for entry in entries):
        raise Refused(f"{what} has a {name} that is no list of texts")
    return entries


def text(config, name, what):
    value = config.get(name) or ""
    if not isinstance(value, str) or not clean(value) or "\n" in value:
        raise Refused(f"{what} has a {name} that is no text of one line")
    return value.encode()


def clean(value):
    """JSON can say a NUL and half of a surrogate pair; neither can be in an argument or a variable."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def listed(parsed, name, what):
    entries = parsed.get(name)
    if not isinstance(entries, list):
        raise Refused(f"{what} has no list {name!r}")
    return entries
