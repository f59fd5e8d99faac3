"""Reading a cluster's configuration file: YAML to a ClusterSpec, each mistake with its line."""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from slurmbed.errors import UsageError
from slurmbed.spec.conflicts import conflicts
from slurmbed.spec.model import ClusterSpec, Location, model_at

HOOK_FOLDERS = ("prolog.d", "task_prolog.d", "epilog.d")
JOB_SUBMIT = "job_submit.lua"
EXPECTED = {"list_type": "a list, like [a, b]", "model_type": "a mapping, key: value"}


def load(path: Path, host_gpus: Callable[[], Sequence[str]]) -> ClusterSpec:
    """The cluster that the file at ``path`` describes, on this machine.

    Args:
        host_gpus: returns the names of the host's GPUs. It is called only if the file has GPUs that are not emulated.

    Raises:
        UsageError: naming the file, and every mistake with its line.
    """
    try:
        text = path.read_text()
        # The base loader reads every value as text; pydantic converts it. To other loaders 1:30:00 is the number 5400.
        tree, values = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "name a file like clusters/laptop.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise UsageError(f"{where}: not YAML", "", str(error)) from None
    if not isinstance(tree, yaml.MappingNode):
        raise UsageError(f"{path}:1: not a cluster", "start with clusters/laptop.yaml")
    mistakes = [(line, f"{key} is given twice") for line, key in repeated_keys(tree)]
    try:
        spec = ClusterSpec.model_validate(values)
        spec = on_this_machine(spec, path.resolve().parent, host_gpus)
        found = (*conflicts(spec), *missing_folders(spec), *unfit_hooks(spec))
        mistakes += [(line_of(tree, where), f"{dotted(where)}: {what}") for where, what in found]
    except ValidationError as error:
        mistakes += [(line_of(tree, each["loc"]), describe(each)) for each in error.errors()]
    if mistakes:
        raise UsageError("\n".join(f"{path}:{line}: {what}" for line, what in sorted(mistakes)))
    return spec


def repeated_keys(node: yaml.Node) -> Iterator[tuple[int, str]]:
    """Keys that a mapping has twice; YAML's loaders silently keep the last one."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                yield key.start_mark.line + 1, key.value
            seen.add(key.value)
            yield from repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from repeated_keys(value)


def line_of(tree: yaml.Node, location: Location) -> int:
    """The line of the key or list item at ``location``, or of the nearest one around it that exists."""
    line, node = tree.start_mark.line, tree
    for part in location:
        if isinstance(node, yaml.MappingNode) and (pair := {k.value: (k, v) for k, v in node.value}.get(part)):
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1


def dotted(location: Location) -> str:
    """("nodes", 0, "cpus") as nodes[0].cpus."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def describe(error: ErrorDetails) -> str:
    """One of pydantic's errors in a line; for an unknown key, with the nearest known one."""
    where, key = dotted(error["loc"]), str(error["loc"][-1])
    if error["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in model_at(error["loc"]).model_fields.items()]
        near = get_close_matches(key, known, n=1, cutoff=0.5)
        return f"{where}: unknown key" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}")
    if error["type"] == "missing":
        return f"{where}: missing"
    if error["type"] in EXPECTED:
        return f"{where}: expected {EXPECTED[error['type']]}"
    value = f" (it is {error['input']!r})" if isinstance(error["input"], str) and error["type"] != "value_error" else ""
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{value}"


def on_this_machine(spec: ClusterSpec, start: Path, host_gpus: Callable[[], Sequence[str]]) -> ClusterSpec:
    """The spec with host paths relative to ``start``, and emulated GPUs if this machine has none of their type."""
    names = host_gpus() if any(group.gpus and not group.gpus.emulated for group in spec.nodes) else ()
    groups = [group.model_copy(update={"gpus": group.gpus.on_host(names)}) for group in spec.nodes]
    mounts = [
        mount.model_copy(update={"host": str((start / Path(mount.host).expanduser()).resolve())})
        for mount in spec.mounts
    ]
    changed: dict[str, object] = {"nodes": groups, "mounts": mounts}
    if spec.hooks:
        hooks = (start / Path(spec.hooks).expanduser()).resolve()
        changed["hooks"] = str(hooks)
        if (hooks / JOB_SUBMIT).is_file():
            changed["slurm_conf"] = [*spec.slurm_conf, "JobSubmitPlugins=lua"]
    return spec.model_copy(update=changed)


def missing_folders(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    for i, mount in enumerate(spec.mounts):
        if not Path(mount.host).is_dir():
            yield ("mounts", i, "host"), f"{mount.host}: no such folder"
    if spec.hooks and not Path(spec.hooks).is_dir():
        yield ("hooks",), f"{spec.hooks}: no such folder"


def unfit_hooks(spec: ClusterSpec) -> Iterator[tuple[Location, str]]:
    """Files that Slurm could not run: it takes a node out of service if a Prolog cannot be run."""
    if not spec.hooks:
        return
    for path in sorted(Path(spec.hooks).glob("*")):
        if path.name not in (*HOOK_FOLDERS, JOB_SUBMIT):
            yield ("hooks",), f"{path} is none of {', '.join((*HOOK_FOLDERS, JOB_SUBMIT))}"
    for script in sorted(Path(spec.hooks).glob("*.d/*")):
        if not (script.is_file() and script.stat().st_mode & 0o111):
            yield ("hooks",), f"{script} is not a program: chmod +x {script}, or remove it"
