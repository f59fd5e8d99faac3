"""Brings an image into the caller's store, or finds it there."""

import os

from imagestore import reference
from imagestore.errors import NO_ROOM, Refused
from imagestore.store import Store, names_of, place

SERVICE = "/run/slurmbed/registry"


def service():
    """The cluster's own registry: the port that users call it by on localhost, and its address; or None."""
    try:
        with open(os.environ.get("CONTAINER_REGISTRY", SERVICE)) as file:
            port, address = file.readline().split()
    except (OSError, ValueError):
        return None
    return port, address


def pull(text):
    """The folder of the image that `text` names, in the caller's store. Raises Refused or OSError."""
    image = reference.parse(text, service())
    store = Store(place())
    if not isinstance(image, reference.RegistryImage):
        return pull_file(image, store)
    digest = image.digest
    if not digest and image.plain:
        from imagestore import head

        digest = head.digest(image)
    # Most starts end here.
    if digest and (folder := store.image_of(digest)):
        return called(store, folder, image)
    from imagestore.registry import Registry

    registry = Registry(image)
    return add(store, registry, digest or registry.digest())


def called(store, folder, image):
    """The folder of an image that was there already, perhaps by another name."""
    if str(image) not in names_of(folder):
        with store.locked():
            store.call(os.path.basename(folder), str(image))
    return folder


def pull_file(image, store):
    if isinstance(image, reference.Squash):
        from imagestore import squash

        return squash.pull(image, store)
    from imagestore import files

    source = files.Layout(image) if isinstance(image, reference.Layout) else files.DockerArchive(image)
    return add(store, source, source.digest())


def add(store, source, digest):
    """The image that `source` has under `digest`. Whoever comes second waits, and finds it."""
    if digest and (folder := store.image_of(digest)):
        return called(store, folder, source.image)
    with store.locked():
        if digest and (folder := store.image_of(digest)):
            store.call(os.path.basename(folder), str(source.image))
            return folder
        image, blobs = source.load(digest)
        if not store.image(image.identity):
            add_layers(store, source, image, blobs)
            store.add_image(image.identity, {**image.files, "layers": image.layers})
        if digest:
            store.remember(digest, image.identity)
        store.call(image.identity, str(source.image))
        return store.image(image.identity)


def add_layers(store, source, image, blobs):
    """Layers that were read to their end stay when a later one fails, but not when the disk is full."""
    added = []
    try:
        for number, (layer, blob) in enumerate(zip(image.layers, blobs, strict=True), start=1):
            if not store.layer(layer):
                what = f"{source.image}: layer {number} of {len(blobs)}"
                store.add_layer(layer, fetch, source, layer, blob, what)
                added.append(layer)
    except OSError as error:
        if error.errno in NO_ROOM:
            for layer in added:
                store.drop_layer(layer)
            raise Refused(f"{source.image}: {error.strerror} in {store.path}") from None
        raise


def fetch(folder, source, digest, blob, what):
    """Unpacks a layer, and checks its digests: of the blob as it came, and of the archive in it."""
    from imagestore.blobs import Checked, decompressed
    from imagestore.layer import unpack

    with source.open(blob) as stream:
        outer = stream
        if not isinstance(blob, str):  # `docker save` has no digests of blobs
            outer = Checked(stream, blob.digest, what, blob.size)
        inner = Checked(decompressed(outer, what), digest, what)
        try:
            unpack(inner, folder, what)
        except Refused:
            # What is cut or forged is often no archive either; its digest says what happened.
            if outer is not stream:
                outer.finish()
            raise
        inner.finish()
        if outer is not stream:
            outer.finish()
