"""A step's container: what bubblewrap is told. See container-start."""

import os
import pwd

from imagestore import gpus
from imagestore.enter import HOLDER, PATH, in_memory, inherited
from imagestore.errors import Refused
from imagestore.inside import apt_of_root, bind_kind, inside, is_there
from imagestore.store import FILES_OF_NODE, layers_of, remove_tree, start_config

SINCE_THE_START = ("mounts", "mount-home", "remap-root", "entrypoint", "readonly")
# Of a mount. bubblewrap makes mount points, and mounts nosuid, nodev and private as it is; it knows no noexec.
WITHOUT_EFFECT = {
    *("", "rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable"),
    *("nosuid", "nodev", "noexec", "x-create=dir", "x-create=file", "x-create=auto"),
}


def start(asked):
    """Becomes bubblewrap with what ``asked`` names, by the options of container.c; Refused if it cannot."""
    if "save" in asked:
        expect_place(asked["save"])
    folder = image(asked)
    told = start_config(folder)
    job = job_with(of_prolog(os.environ, asked["prolog"]))
    is_root = "remap-root" in asked
    entry = pwd.getpwuid(os.getuid())
    home = "/root" if is_root else entry.pw_dir
    workdir = asked.get("workdir") or told["WorkingDir"] or "/"
    layers = layers_of(folder) + ([f"{asked['kept']}/upper"] if "kept" in asked else [])

    def there(path):
        """bubblewrap does not follow the links of an image."""
        return inside(layers, path)

    words = ["bwrap", "--unshare-user", "--die-with-parent"]
    if is_root:
        words += ["--uid", "0", "--gid", "0"]
    words += root(folder, asked.get("kept"))
    words += of_node(job, there)
    of_gpus, of_driver = gpus.of_node(there(gpus.FOLDER), lambda path: is_there(layers, path))
    words += of_gpus
    words += ["--bind", entry.pw_dir, there(home)] if "mount-home" in asked else ["--dir", there(home)]
    if not is_root:
        words += known_user(layers, entry)
    elif apt := apt_of_root(layers):
        words += file_with(apt[1].encode(), there(apt[0]))
    words += mounts(asked.get("mounts", ""), there)
    if "workdir" not in asked:  # Docker makes it, too
        words += ["--dir", there(workdir)]
    if "readonly" in asked:
        words += ["--remount-ro", "/"]
    words += ["--chdir", workdir, "--"]
    if "entrypoint" in asked:
        words += told["Entrypoint"]
    if "kept" in asked:
        with open(f"{asked['kept']}/asked", "w") as file:
            file.write("\0".join(since_the_start(asked)))
    holder = inherited(os.open(HOLDER, os.O_RDONLY))
    environment = gpus.added(merged(job, told["Env"], asked.get("env", "")), of_driver)
    os.execvpe("/usr/bin/bwrap", [*words, f"/proc/self/fd/{holder}"], {**environment, "HOME": home})


def join(asked):
    """Reports what a step finds in a container that runs, as the holder would."""
    with open(3, "wb") as report:
        report.write(b"".join(os.fsencode(each) + b"\0" for each in ("0", *joined(asked), "")))


def joined(asked):
    """The working directory that the step asks for, and its variables: those of its own job, and of the image what the
    container's first step found."""
    if "save" in asked:
        expect_place(asked["save"])
    with open(f"{asked['kept']}/asked") as file:
        there = file.read().split("\0")
    for option in since_the_start(asked):
        if option not in there:
            raise Refused(f"--container-{option.rstrip('=')}: the container runs already, and was started without it")
    with open(f"{asked['kept']}/running", "rb") as file:
        folder, *told = os.fsdecode(file.read().split(b"\0\0")[0]).split("\0")
    own = of_prolog(os.environ, asked["prolog"])
    of_image = [each for each in told if "=" in each and each.partition("=")[0] not in own]
    environment = merged(job_with(own), of_image, asked.get("env", ""))
    return [asked.get("workdir") or folder, *(f"{name}={value}" for name, value in environment.items())]


def since_the_start(asked):
    return [f"{name}={asked[name]}" for name in SINCE_THE_START if name in asked]


def expect_place(file):
    """Before the work is done whose result would be lost."""
    folder = os.path.dirname(file)
    if os.path.isdir(file) or not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"--container-save={file}: you cannot write such a file")


def of_node(job, there):
    """What of the node each container sees."""
    words = ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"]
    words += ["--perms", "1777", "--dir", there("/tmp"), "--dir", there("/run")]
    for path in FILES_OF_NODE:
        words += ["--ro-bind", path, there(path)]
    for path in made_by_slurm(os.environ):
        words += ["--bind", path, there(path)]
    if os.path.isdir(job.get("SLURM_TMPDIR", "")):
        words += ["--bind", job["SLURM_TMPDIR"], there(job["SLURM_TMPDIR"])]
    return words


def image(asked):
    """The folder that describes the image: of the kept container if there is one, else of the one that is asked for."""
    kept = asked.get("kept")
    if kept and os.path.exists(f"{kept}/image"):
        return image_of(kept)
    if "image" not in asked:
        raise Refused(f"no container {asked['name']} is kept on {os.uname().nodename}; start it with --container-image")
    from imagestore.pull import pull

    folder = pull(asked["image"])
    if kept:
        for name in ("upper", "work"):
            os.makedirs(f"{kept}/{name}", exist_ok=True)
        with open(f"{kept}/image.new", "w") as file:
            file.write(folder)
        os.rename(f"{kept}/image.new", f"{kept}/image")
    return folder


def root(folder, kept):
    """The container's files: the layers, and above them what it changes, in memory unless it is kept."""
    words = []
    for layer in layers_of(folder):
        words += ["--overlay-src", layer]
    return words + (["--overlay", f"{kept}/upper", f"{kept}/work", "/"] if kept else ["--tmp-overlay", "/"])


def mounts(asked, there=str):
    """SRC:DST[:FLAG+...],... as bubblewrap's words; SRC alone is seen under its own path. there: DST without links."""
    words = []
    for each in filter(None, asked.split(",")):
        source, _, rest = each.partition(":")
        target, _, flags = (rest or source).partition(":")
        if not source or source == "umount":
            raise Refused(f"--container-mounts={each}: write SRC:DST, SRC:DST:ro or tmpfs:DST")
        if not target.startswith("/"):
            raise Refused(f"--container-mounts={each}: {target!r} is no absolute path in the container")
        given = set(flags.split("+"))
        if unknown := given - WITHOUT_EFFECT - {"ro"}:
            raise Refused(f"--container-mounts={each}: the flag {min(unknown)!r} is not supported; ro is")
        if source == "tmpfs":
            words += ["--tmpfs", there(target), *(["--remount-ro", there(target)] if "ro" in given else [])]
        else:
            words += [f"--{bind_kind(source, 'ro' in given)}", source, there(target)]
    return words


def merged(job, of_image, kept_names):
    """The job's environment with the image's, which has precedence but for the names that are kept."""
    kept = kept_names.split(",")
    given = dict(each.partition("=")[::2] for each in of_image)
    return {**job, **{name: value for name, value in given.items() if name not in kept or name not in job}}


def of_prolog(job, program):
    """The variables that Slurm's TaskProlog sets, or unsets: None. It prints `export NAME=VALUE` and `unset NAME`, and
    runs once, on the node, for all tasks."""
    changed = {}
    if not program:
        return changed
    reads, writes = os.pipe()
    child = os.posix_spawn(program, [program], job, file_actions=[(os.POSIX_SPAWN_DUP2, writes, 1)])
    os.close(writes)
    with os.fdopen(reads, errors="surrogateescape") as printed:
        for line in printed:
            verb, _, rest = line.rstrip("\n").partition(" ")
            name, _, value = rest.partition("=")
            if verb == "export" and name:
                changed[name] = value
            elif verb == "unset":
                changed[rest.strip()] = None
    if status := os.waitpid(child, 0)[1]:
        raise Refused(f"TaskProlog {program} ended with status {os.waitstatus_to_exitcode(status)}")
    return changed


def job_with(changed):
    return {name: value for name, value in {"PATH": PATH, **os.environ, **changed}.items() if value is not None}


def known_user(layers, entry):
    """The image's lists of users and groups with the user's own lines: programs ask for the names of ids."""
    words = []
    passwd = f"{entry.pw_name}:x:{entry.pw_uid}:{entry.pw_gid}::{entry.pw_dir}:/bin/sh"
    for name, line in (("passwd", passwd), ("group", f"{entry.pw_name}:x:{entry.pw_gid}:")):
        path = inside(layers, f"/etc/{name}")
        found = next(filter(None, (plain_file(each + path) for each in reversed(layers))), b"")
        number = line.split(":")[2]
        if all(each.split(b":")[2:3] != [number.encode()] for each in found.splitlines()):
            text = found + (b"" if found.endswith(b"\n") or not found else b"\n") + f"{line}\n".encode()
            words += file_with(text, path)
    return words


def file_with(text, path):
    return ["--perms", "0644", "--file", str(in_memory(text)), path]


def plain_file(path):
    """What is in a file of an image; b"" if it is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(file, "rb") as opened:
        return opened.read() if os.path.isfile(f"/proc/self/fd/{file}") else b""


def made_by_slurm(environment, spool="/var/lib/slurm/slurmd", temporary="/tmp"):
    """What tasks look for at its path: the folder of a batch script; PMIx's, of sockets and of its ranks' files."""
    job = environment["SLURM_JOB_ID"]
    step = f"{job}.{environment.get('SLURM_STEP_ID')}"
    found = [path for path in (f"{spool}/job{job:0>5}", f"{spool}/pmix.{step}") if os.path.isdir(path)]
    return found + [
        f"{temporary}/{name}"
        for name in os.listdir(temporary)
        if name.startswith("spmix_appdir_") and name.endswith(step)
    ]


def save(asked):
    """Writes a kept container into a file; one without a name was kept for this alone."""
    from imagestore import squash

    kept = asked["kept"]
    folder = image_of(kept)
    try:
        squash.write([*layers_of(folder), f"{kept}/upper"], start_config(folder), asked["save"])
    finally:
        if "name" not in asked:
            remove_tree(kept)


def image_of(kept):
    with open(f"{kept}/image") as file:
        return file.read()
