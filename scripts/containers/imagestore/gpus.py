"""What a container gets of its node's GPUs, besides the devices in /dev: the driver's libraries and programs.

NVIDIA's container runtime has mounted them into the node one by one, and ldconfig has made the links. In a container
they are in a folder of their own, to which LD_LIBRARY_PATH and PATH lead: the image, with its cache of libraries, stays
as it is.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"""

import os

from imagestore.enter import in_memory

FOLDER = "/usr/local/nvidia"
MOUNTS = "/proc/self/mountinfo"
EMULATED = "/usr/local/bin/nvidia-smi"  # a link, where GPUs are emulated
GRES = "/etc/slurm/gres.conf"
INTERPRETERS = ("/usr/bin/python3", "/usr/local/bin/python3")


def of_node(place, has):
    """(WORDS, VARIABLES): bubblewrap's words, and what to add to PATH and LD_LIBRARY_PATH.

    place: FOLDER without links. has: whether the container has a file of this path."""
    with open(MOUNTS) as file:
        libraries, programs = driver(file.read())
    if libraries or programs:
        words = ["--tmpfs", place]
        for folder, files in (("lib64", libraries), ("bin", programs)):
            for path in files:
                words += ["--ro-bind", path, f"{place}/{folder}/{os.path.basename(path)}"]
        for name, target in sorted(links(libraries).items()):
            words += ["--symlink", target, f"{place}/lib64/{name}"]
        return [*words, "--remount-ro", place], {"PATH": f"{FOLDER}/bin", "LD_LIBRARY_PATH": f"{FOLDER}/lib64"}
    if os.path.islink(EMULATED) and (python := next(filter(has, INTERPRETERS), None)):
        script = str(started_by(python, EMULATED))
        words = ["--tmpfs", place, "--perms", "0755", "--file", script, f"{place}/bin/nvidia-smi"]
        words += ["--ro-bind", GRES, f"{place}/gres.conf", "--remount-ro", place]
        return words, {"PATH": f"{FOLDER}/bin"}
    return [], {}


def driver(mountinfo):
    """Paths of the driver's libraries and of its programs, from the text of /proc/self/mountinfo."""
    points = dict.fromkeys(line.split(" ")[4] for line in mountinfo.splitlines())
    libraries = [point for point in points if is_library(os.path.basename(point))]
    programs = [point for point in points if "bin/nvidia-" in point]
    return libraries, programs


def is_library(name):
    return ".so" in name and ("nvidia" in name or name.startswith(("libcuda", "libnv")))


def links(libraries):
    """NAME -> NAME of what it leads to: programs ask for libcuda.so.1, which is a link."""
    real = {os.path.realpath(path): os.path.basename(path) for path in libraries}
    found = {}
    for folder in {os.path.dirname(path) for path in libraries}:
        for entry in os.scandir(folder):
            if is_library(entry.name) and entry.is_symlink() and (target := real.get(os.path.realpath(entry.path))):
                found[entry.name] = target
    return found


def started_by(python, path):
    """A descriptor of a copy of this script, for this interpreter."""
    with open(path, "rb") as file:
        _, _, rest = file.read().partition(b"\n")
    return in_memory(b"#!%s -IS\n%s" % (python.encode(), rest))


def added(environment, variables):
    """The environment with the driver's libraries before the image's, and its programs after them."""
    changed = dict(environment)
    if "LD_LIBRARY_PATH" in variables:
        given = environment.get("LD_LIBRARY_PATH")
        changed["LD_LIBRARY_PATH"] = ":".join(filter(None, [variables["LD_LIBRARY_PATH"], given]))
    if "PATH" in variables:
        changed["PATH"] = ":".join(filter(None, [environment.get("PATH"), variables["PATH"]]))
    return changed
