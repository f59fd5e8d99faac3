"""An OCI runtime bundle of an image: config.json and rootfs, for `srun --container=FOLDER` by crun without rights.

https://github.com/opencontainers/runtime-spec/blob/main/bundle.md"""

import json
import os

from imagestore import merged
from imagestore.errors import Refused
from imagestore.store import FILES_OF_NODE, beside, layers_of, start_config

# The node's: a container has no namespaces but those of users and mounts.
OF_THE_NODE = (("/proc", "rw"), ("/dev", "rw"), ("/sys", "ro"), ("/tmp", "rw"))


def write(image, target):
    """Makes the folder `target` of the image in this folder of a store. It appears when it is whole."""
    if os.path.lexists(target):
        raise Refused(f"{target} is there already")
    try:
        with beside(target) as folder:
            made = f"{folder}/bundle"
            os.mkdir(made, 0o700)
            merged.copy(layers_of(image), f"{made}/rootfs")
            for name, _ in OF_THE_NODE:
                os.makedirs(f"{made}/rootfs{name}", exist_ok=True)
            with open(f"{made}/config.json", "w") as file:
                json.dump(runtime_config(start_config(image)), file, indent=2)
            os.rename(made, target)
    except OSError as error:
        raise Refused(f"{target}: {error.strerror}") from None


def runtime_config(start):
    user, group = os.geteuid(), os.getegid()
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": start["Entrypoint"] + start["Cmd"] or ["/bin/sh"],
            "env": start["Env"],
            "cwd": start["WorkingDir"] or "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            {"destination": name, "source": name, "type": "none", "options": ["rbind", mode]}
            for name, mode in OF_THE_NODE
        ]
        + [{"destination": name, "source": name, "type": "none", "options": ["bind", "ro"]} for name in FILES_OF_NODE],
        "linux": {
            "namespaces": [{"type": "user"}, {"type": "mount"}],
            "uidMappings": [{"containerID": user, "hostID": user, "size": 1}],
            "gidMappings": [{"containerID": group, "hostID": group, "size": 1}],
        },
    }
