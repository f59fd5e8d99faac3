"""Images for containers in jobs, made of files of a cluster's login node: nothing is downloaded."""

import subprocess
from collections.abc import Sequence

from harness import engine

# A tar file of what the folder `own` has, and of what is named in `names`, with the libraries that it takes.
# `tar --dereference`: /bin and /lib are links in Debian.
COLLECT = r"""
set -eu
cd "$(mktemp -d)"
mkdir --parents own/tmp own/usr/local/bin
printf '%s\n' /bin/sh /usr/bin/bash >names
OF_IMAGE
ldd $(grep -E '/bin/|\.so$' names) 2>/dev/null | sed -n 's|^.*\s\(/[^ ]*\) (0x.*|\1|p' >libraries
sort -u names libraries | sed 's|^/||' >files
tar --create --dereference --directory=own . --directory=/ --files-from="$PWD/files"
"""
# A shell, a few programs, what the tests look for, and how it starts.
SHIP = r"""
printf '/usr/bin/%s\n' cat chmod chown cut env grep hostname id ls mkdir readlink sleep sort touch >>names
mkdir own/harbour
echo 'all aboard' >own/harbour/sign
printf '%s\n' '#!/bin/sh' 'export BOARDED=yes' 'exec "$@"' >own/harbour/entry
printf '%s\n' '#!/bin/sh' 'echo "$(cat /harbour/sign) on $(hostname): $*"' >own/usr/local/bin/torchrun
chmod 755 own/harbour/entry own/usr/local/bin/torchrun
"""
OF_SHIP = (
    "ENV CARGO=bricks",
    "ENV PATH=/usr/local/bin:/usr/bin:/bin",
    "WORKDIR /harbour",
    'ENTRYPOINT ["/harbour/entry"]',
)
# Debian's python3.
PYTHON = r"""
python=$(readlink -f /usr/bin/python3)
printf '%s\n' "$python" /usr/bin/{ls,python3} >>names
find -L "/usr/lib/${python##*/}" \( -name 'config-*' -o -name test \) -prune -o -type f -print >>names
"""
# Debian's python3, torch and Open MPI, without what programs of the workspace never import.
TORCH = r"""
python=$(readlink -f /usr/bin/python3) packages=/usr/lib/python3/dist-packages
printf '%s\n' "$python" /usr/bin/{bash,cat,env,hostname,python3,torchrun} >>names
find -L "/usr/lib/${python##*/}" $packages/{torch,torch-*,torchgen,numpy,sympy,mpmath,mpi4py,typing_extensions.py} \
  \( -name 'config-*' -o -name test -o -name tests -o -path '*/torch/lib' -o -path '*/torch/bin' \
  -o -name '*.pyi' -o -name '*.opt-?.pyc' \) -prune -o -type f -print >>names
printf '%s\n' $packages/torch/{lib/libtorch_global_deps.so,bin/torch_shm_manager} >>names
for name in python3 torchrun; do
  printf '%s\n' '#!/bin/sh' "echo '$name of the image' >&2" "exec /usr/bin/$name \"\$@\"" >own/usr/local/bin/$name
done
chmod 755 own/usr/local/bin/*
find -L /usr/lib/*-linux-gnu/{openmpi/lib,pmix2} /usr/share/openmpi /etc/openmpi -type f ! -name '*.a' -print >>names
"""


def make(cluster, name: str, of_image: str, changes: Sequence[str] = ()) -> None:
    """Make an image of that name; Docker has it then.

    Args:
        of_image: SHIP, PYTHON or TORCH.
        changes: as `docker import --change`.
    """
    files = engine.exec_argv(cluster, "login", ["bash", "-c", COLLECT.replace("OF_IMAGE", of_image)])
    words = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(files, stdout=subprocess.PIPE) as collecting:
        made = subprocess.run(["docker", "import", *words, "-", name], stdin=collecting.stdout, timeout=300)
    assert (collecting.returncode, made.returncode) == (0, 0)


def save(cluster, name: str, file: str) -> str:
    """Write an image of Docker's into a file of the workspace; what jobs call it."""
    archive = cluster.workspace() / file
    engine.docker("save", "--output", str(archive), name, timeout=300)
    archive.chmod(0o644)
    return f"docker-archive:/workspace/{file}"
