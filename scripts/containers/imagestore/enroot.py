"""The command enroot, as far as launch scripts use it: the options, variables and messages that its documentation has.

Containers are folders in ENROOT_DATA_PATH, started by bubblewrap. https://github.com/NVIDIA/enroot/tree/master/doc"""

import argparse
import errno
import os
import shlex
import subprocess
import sys

from imagestore import enter, pyxis, reference, squash
from imagestore.errors import Refused
from imagestore.manifest import MACHINES
from imagestore.store import beside, layers_of, remove_tree, start_config

VERSION = "3.5.0"
NOT_HERE = ("batch", "bundle", "load")


def main(arguments):
    os.umask(0o022)
    try:
        if arguments[:1] and arguments[0] in NOT_HERE:
            raise Refused(f"Command not supported here: {arguments[0]}")
        options = parser().parse_args(arguments)
        return options.run(options) or 0
    except Refused as error:
        message = str(error)
    except OSError as error:
        message = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    except KeyboardInterrupt:
        return 130
    print("[ERROR]", message.replace("\n", " "), file=sys.stderr)
    return 1


def parser():
    parser = argparse.ArgumentParser(prog="enroot", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, run, text, *others):
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(run=run)
        for words, about in others:
            added.add_argument(*words.split(), **about)

    force = ("-f --force", {"action": "store_true", "help": "overwrite, or do not ask"})
    output = ("-o --output", {"metavar": "FILE"})
    env = ("-e --env", {"action": "append", "default": [], "metavar": "NAME[=VALUE]"})
    rest = ("command", {"nargs": argparse.REMAINDER, "metavar": "COMMAND"})
    arch = ("-a --arch", {"metavar": "ARCH", "help": "of this machine, which is the default"})
    uri = ("uri", {"metavar": "docker://[USER@][REGISTRY#]IMAGE[:TAG]"})
    command("import", import_image, "write an image into a squashfs file", arch, output, force, uri)
    name = ("-n --name", {"help": "as FILE.sqsh, if not given"})
    command(
        "create", create, "unpack a squashfs file into a container", name, force, ("image", {"metavar": "FILE.sqsh"})
    )
    command(
        "start",
        start,
        "run a command in a container, or in a squashfs file",
        ("-r --root", {"action": "store_true", "help": "be root in it"}),
        ("-w --rw", {"action": "store_true", "help": "its files can be written to"}),
        ("-m --mount", {"action": "append", "default": [], "metavar": "SOURCE:TARGET[:ro]"}),
        env,
        ("-c --conf", {"metavar": "FILE", "help": "not supported here"}),
        ("--rc", {"metavar": "SCRIPT", "help": "instead of its /etc/rc"}),
        ("container", {"metavar": "NAME|FILE.sqsh"}),
        rest,
    )
    command("exec", execute, "run a command where a process of a container runs", env, ("pid", {"type": int}), rest)
    command(
        "export", export, "write a container into a squashfs file", output, force, ("container", {"metavar": "NAME"})
    )
    command("list", show, "the containers", ("-f --fancy", {"action": "store_true", "help": "and their processes"}))
    command("remove", remove, "remove containers", force, ("containers", {"nargs": "+", "metavar": "NAME"}))
    command("version", lambda _: print(VERSION), "the version of enroot whose commands these are")
    return parser


def data_path():
    share = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.environ.get("ENROOT_DATA_PATH") or f"{share}/enroot"


def container(name):
    if "/" in name or name in ("", ".", "..") or name.startswith("-"):
        raise Refused(f"Invalid argument: {name}")
    return f"{data_path()}/{name}"


def existing(name):
    path = container(name)
    if not os.path.isdir(path):
        raise Refused(f"No such file or directory: {path}")
    return path


def inform(text):
    print("[INFO]", text, file=sys.stderr)


def overwrites(options):
    return options.force or os.environ.get("ENROOT_FORCE_OVERRIDE", "").lower() in ("y", "yes", "true", "1")


def import_image(options):
    scheme = options.uri.partition("://")[0]
    if scheme in ("dockerd", "podman"):
        raise Refused(
            f"{scheme}:// is not there: nodes have no {scheme.removesuffix('d').title()}. Push the image to the "
            "cluster's registry and import docker://localhost:PORT#NAME, or import docker-archive:FILE, which "
            "`docker save` writes"
        )
    expect_arch(options.arch)
    from imagestore.pull import pull, service

    image = reference.parse(options.uri, service())
    if isinstance(image, reference.Squash):
        raise Refused(f"Invalid argument: {options.uri}")
    file = options.output or file_name(options.uri, image)
    if os.path.lexists(file) and not overwrites(options):
        raise Refused(f"File already exists: {os.path.realpath(file)}")
    inform(f"Fetching image {image}")
    folder = pull(options.uri)
    inform("Creating squashfs filesystem...")
    squash.write(layers_of(folder), start_config(folder), file, options=squash_options())


def expect_arch(name):
    machine = os.uname().machine
    names = {machine, MACHINES.get(machine, machine)}
    if name and name not in names:
        raise Refused(
            f"Architecture not supported here: {name}; this machine runs images for {' or '.join(sorted(names))}"
        )


def file_name(uri, image):
    """As enroot names it, by what was typed after the registry: docker://nvidia/cuda:12 is nvidia+cuda+12.sqsh."""
    if not isinstance(image, reference.RegistryImage):
        return os.path.basename(image.path).removesuffix(".tar") + ".sqsh"
    registry, _, typed = uri.removeprefix("docker://").partition("@sha256:")[0].rpartition("#")
    first, _, others = typed.rpartition("@")[2].partition("/")
    typed = others if others and not registry and reference.is_host(first) else typed.rpartition("@")[2]
    return typed.replace("/", "+").replace(":", "+") + ".sqsh"


def squash_options():
    given = os.environ.get("ENROOT_SQUASH_OPTIONS")
    return shlex.split(given) if given else squash.FASTEST


def create(options):
    name = options.name or os.path.basename(options.image).rpartition(".")[0] or options.image
    path = container(name)
    if not os.path.isfile(options.image):
        raise Refused(f"No such file or directory: {options.image}")
    if name.startswith(pyxis.PREFIX):
        inform("Extracting squashfs filesystem...")
        return pyxis.create(name, options.image, overwrites(options))
    if os.path.lexists(path) and not overwrites(options):
        raise Refused(f"File already exists: {path}")
    inform("Extracting squashfs filesystem...")
    os.makedirs(data_path(), mode=0o700, exist_ok=True)
    with beside(path) as folder:
        made = f"{folder}/container"
        os.mkdir(made, 0o755)
        squash.unpack(made, options.image)
        if overwrites(options) and os.path.lexists(path):
            os.rename(path, f"{folder}/old")
        try:
            os.rename(made, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise Refused(f"File already exists: {path}") from None  # another node was faster


def start(options):
    if options.conf:
        raise Refused("Option not supported here: --conf; use --env, --mount and --rc")
    from imagestore.enroot_start import command_line

    if os.path.isfile(options.container):
        from imagestore.pull import pull

        layers = layers_of(pull(os.path.realpath(options.container)))
        root = layers[-1]
    else:
        root, layers = existing(options.container), None
    enter.start(*command_line(root, layers, options, without_dashes(options.command)))


def execute(options):
    command = without_dashes(options.command)
    if not command:
        raise Refused("Invalid argument: a command is missing")
    if not os.path.isdir(f"/proc/{options.pid}"):
        raise Refused(f"No such process: {options.pid}")
    with open(f"/proc/{options.pid}/environ", "rb") as file:
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if b"=" in entry]
    environment = {name: value for name, _, value in entries}
    for entry in options.env:
        name, equals, value = entry.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    enter.join(options.pid, command, environment)


def without_dashes(command):
    return command[1:] if command[:1] == ["--"] else command


def export(options):
    kept = pyxis.folder_of(options.container)
    root = kept or existing(options.container)
    file = options.output or f"{options.container}.sqsh"
    if os.path.lexists(file) and not overwrites(options):
        raise Refused(f"File already exists: {os.path.realpath(file)}")
    inform("Creating squashfs filesystem...")
    layers, config = pyxis.content(kept) if kept else ([root], start_config_of(root))
    squash.write(layers, config, file, options=squash_options())


def start_config_of(root):
    """As it was when the container was made, with what /etc/environment says now."""
    told = squash.start_of(root, root)

    def words(name):
        return [word.decode() for word in told[name].split(b"\0")[:-1]]

    return {
        "Env": words("env"),
        "Entrypoint": words("entrypoint"),
        "Cmd": words("cmd"),
        "WorkingDir": told["workdir"].decode(),
        "User": told["user"].decode(),
    }


def show(options):
    try:
        names = [name for name in os.listdir(data_path()) if not name.startswith(".")]
    except FileNotFoundError:
        names = []
    names = sorted({*names, *pyxis.names()})
    if not options.fancy:
        print("".join(f"{name}\n" for name in names), end="")
        return
    columns = "pid,comm:16,state,start_time,time,mntns,userns,args"
    print(f"{'NAME':<20} PID COMM STATE STARTED TIME MNTNS USERNS COMMAND")
    for name in names:
        kept = pyxis.folder_of(name)
        pids = first_of_each(pyxis.processes(kept) if kept else processes(f"{data_path()}/{name}"))
        said = ""
        if pids:
            argv = ["ps", "--no-headers", "-o", columns, "-p", ",".join(pids)]
            said = subprocess.run(argv, capture_output=True, text=True).stdout
        for number, line in enumerate(said.splitlines() or [""]):
            print(f"{'' if number else name:<20} {line}".rstrip())


def first_of_each(pids):
    """Of each mount namespace the first process, as lsns lists them: scripts take one line for one container."""
    found = {}
    for pid in sorted(pids, key=int):
        try:
            found.setdefault(os.stat(f"/proc/{pid}/ns/mnt").st_ino, pid)
        except OSError:
            continue  # ended
    return list(found.values())


def processes(root):
    """Of the caller, with this folder as their root."""
    there = os.stat(root)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.samestat(os.stat(f"/proc/{pid}/root"), there):
                found.append(pid)
        except OSError:
            continue  # another user's, or ended
    return found


def remove(options):
    paths = [pyxis.folder_of(name) or existing(name) for name in options.containers]
    for name, path in zip(options.containers, paths, strict=True):
        if not options.force:
            print(f"Do you really want to delete {path}? [y/N] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                continue
        if pyxis.folder_of(name):
            pyxis.remove(name)
        else:
            remove_tree(path)
