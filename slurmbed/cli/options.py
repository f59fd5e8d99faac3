"""Options of the command line that are settings of a cluster: their names, choices and help come from Settings."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, get_args

import click

from slurmbed.cluster.settings import FLAVORS, VERSIONS, Settings, Torch, checked

MADE_WITH = "cpus memory slurm flavor torch nvidia_smi cgroups retain adopt"
"""Options of every command that may make a cluster."""

CHOICES = {"slurm": tuple(VERSIONS), "flavor": tuple(FLAVORS), "torch": get_args(Torch)}
FLAGS = {
    "nvidia_smi": "--nvidia-smi/--no-nvidia-smi",
    "cgroups": "--cgroups/--no-cgroups",
    "rest": "--rest/--no-rest",
    "containers": "--containers/--no-containers",
    "retain": "--retain",
    "adopt": "--adopt",
}


def setting(name: str, default: str = "") -> Callable:
    """The option of one setting. Values stay text: Settings converts and checks them.

    Args:
        default: text that replaces the setting's own default in the help.
    """
    field = Settings.model_fields[name]
    text = field.description or ""
    if default:
        text = f"{text.partition(' [default: ')[0]} [{default}]"
    dashed = f"--{name.replace('_', '-')}"
    if name == "name":
        return click.option(dashed, default=field.default, envvar="SLURMBED_NAME", show_default=True, help=text)
    if name in FLAGS:
        return click.option(FLAGS[name], name, is_flag=True, default=None, help=text)
    if name == "mount":
        return click.option(dashed, type=click.Path(), multiple=True, help=text)
    kind = click.Choice(CHOICES[name]) if name in CHOICES else click.Path() if name in ("config", "workspace") else None
    return click.option(dashed, default=None, type=kind, help=text)


def with_settings(names: str = "", of_cluster: bool = True, nodes: str = "") -> Callable:
    """Give a command the options ``names``; its function gets ``settings`` instead of them.

    Args:
        of_cluster: give it --name too.
        nodes: the default that the help shows for --nodes, if it differs from that of ``Settings``.
    """
    chosen = [*names.split(), *(["name"] if of_cluster else [])]

    def decorate(function: Callable) -> Callable:
        def called(**values: Any) -> Any:
            given = {name: value for name in chosen if (value := values.pop(name)) not in (None, "", ())}
            return function(settings=checked(given), **values)

        command = update_wrapper(called, function)  # with the options that the function has already
        for name in reversed(chosen):
            command = setting(name, nodes if name == "nodes" else "")(command)
        return command

    return decorate
