"""Images in files: what `docker save` writes, and folders in the OCI image layout."""

import os
import posixpath
import tarfile
from contextlib import contextmanager

from imagestore import blobs, manifest
from imagestore.errors import Refused
from imagestore.reference import HEX

TAG = "org.opencontainers.image.ref.name"


class DockerArchive:
    """The archive is read where it lies; nothing of it is unpacked but layers."""

    def __init__(self, image):
        self.image = image
        try:
            self.archive = tarfile.open(image.path)  # noqa: SIM115 # open while its layers are read
            self.members = {member.name: member for member in self.archive}
        except OSError as error:
            raise Refused(f"{image.path}: {error.strerror or error}") from None
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise Refused(f"{image.path} is no archive of `docker save`: {error}") from None

    def digest(self):
        return None

    def load(self, _):
        what = str(self.image)
        content = self._small("manifest.json")
        entries = manifest.parse_json(b'{"images": %s}' % content, f"manifest.json of {what}")["images"]
        if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
            raise Refused(f"{what} does not have one image: save one alone")
        name = entries[0].get("Config")
        layers = manifest.listed(entries[0], "Layers", what)
        if not isinstance(name, str) or not all(isinstance(layer, str) for layer in layers):
            raise Refused(f"manifest.json of {what} names no configuration or layers")
        content = self._small(name)
        identity = blobs.digest_of(content)
        told = posixpath.basename(name).removesuffix(".json")
        if len(told) == 64 and HEX.issuperset(told) and identity != f"sha256:{told}":
            raise Refused(f"the configuration of {what} has the digest {identity}, not sha256:{told}")
        return manifest.image(identity, content, len(layers), what), layers

    @contextmanager
    def open(self, layer):
        with self._member(layer) as file:
            yield file

    def _small(self, name):
        with self._member(name) as file:
            content = file.read(blobs.SMALL + 1)
        if len(content) > blobs.SMALL:
            raise Refused(f"{self.image}: {name!r} has more than {blobs.SMALL} bytes")
        return content

    def _member(self, name):
        """A file in the archive. Docker before 25 writes a layer that is there twice as a link to the other one."""
        member = self.members.get(name)
        if member is not None and member.issym():
            member = self.members.get(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
        if member is None or not member.isreg():
            raise Refused(f"{self.image} has no file {name!r}: it is no archive of `docker save`, or was cut")
        return self.archive.extractfile(member)


class Layout:
    def __init__(self, image):
        self.image = image
        if not os.path.isdir(image.path):
            raise Refused(f"{image.path} is no folder")

    def digest(self):
        """Of the manifest, or index, in the folder's index."""
        what = str(self.image)
        try:
            with open(f"{self.image.path}/index.json", "rb") as file:
                index = manifest.parse_json(file.read(4 << 20), f"index.json of {what}")
        except OSError as error:
            raise Refused(f"{self.image.path} is no OCI layout: index.json: {error.strerror}") from None
        entries = manifest.listed(index, "manifests", what)
        tags = [tag_of(entry) for entry in entries]
        if self.image.tag:
            entries = [entry for entry, tag in zip(entries, tags, strict=True) if tag == self.image.tag]
        if len(entries) != 1:
            there = ", ".join(sorted(filter(None, tags))) or "no tag"
            raise Refused(f"{what} is not one image: say oci:FOLDER:TAG; it has {there}")
        return manifest.blob(entries[0], what).digest

    def load(self, digest):
        what = str(self.image)
        parsed = self._manifest(digest, what)
        if manifest.is_index(parsed):
            parsed = self._manifest(manifest.for_this_machine(parsed, what).digest, what)
        config, layers = manifest.blobs(parsed, what)
        with self.open(config) as file:
            content = blobs.small(file, config.digest, f"the configuration of {what}", config.size)
        return manifest.image(config.digest, content, len(layers), what), layers

    def open(self, layer):
        try:
            return open(f"{self.image.path}/blobs/sha256/{layer.digest[7:]}", "rb")  # the caller's
        except OSError as error:
            raise Refused(f"{self.image}: {layer.digest}: {error.strerror}") from None

    def _manifest(self, digest, what):
        with self.open(manifest.Blob(digest, None)) as file:
            content = blobs.small(file, digest, f"the manifest of {what}")
        return manifest.parse_json(content, f"the manifest of {what}")


def tag_of(entry):
    annotations = entry.get("annotations") if isinstance(entry, dict) else None
    tag = annotations.get(TAG) if isinstance(annotations, dict) else None
    return tag if isinstance(tag, str) else None
