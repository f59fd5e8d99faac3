"""Which digest a tag has now, asked of the cluster's own registry in one small request.

Each start of a container asks this. Python's HTTP client takes longer to import than all the rest takes together, and
the registry service speaks plain HTTP without a token. Whatever else comes back is left to registry.py."""

import socket

from imagestore.reference import is_digest

ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


def digest(image):
    """The digest of a RegistryImage that is reached over plain HTTP; None: ask properly."""
    address, _, port = image.host.rpartition(":")
    if not address:
        return None
    request = (
        f"HEAD /v2/{image.name}/manifests/{image.tag} HTTP/1.0\r\n"
        f"Host: {image.host}\r\nAccept: {ACCEPT}\r\nConnection: close\r\n\r\n"
    )
    answer = b""
    try:
        with socket.create_connection((address.strip("[]"), int(port)), timeout=10) as connection:
            connection.sendall(request.encode())
            while b"\r\n\r\n" not in answer and len(answer) < 65536:
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
    except OSError:
        return None
    status, *lines = answer.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
    if status.split(" ")[1:2] != ["200"]:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "docker-content-digest" and is_digest(value.strip()):
            return value.strip()
    return None
