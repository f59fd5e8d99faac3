"""Exercise of the lesson on containers: the files that a container sees, from the layers of its image.

lessons/follow jobs/lesson.sbatch grade containers
"""

HIDES = ".wh."  # /etc/.wh.motd: /etc/motd of the layers below is gone, whether a file or a folder
HIDES_ALL = ".wh..wh..opq"  # /etc/.wh..wh..opq: all that the layers below have in /etc is gone


def merged(layers: list[dict[str, str]]) -> dict[str, str]:
    """The files that a container sees: path, like /etc/motd, to content.

    Args:
        layers: the lowest first; each is path to content. Folders are not listed. A marker hides nothing in its own
            layer, and is not in the result.
    """
    raise NotImplementedError("no layers yet")
