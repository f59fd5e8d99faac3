"""A real multi-node Slurm cluster on one machine. `slurmbed up --nodes 8` and `make up NODES=8` are the same."""

import signal
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from slurmbed import interrupt
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.interrupt import Interrupted

COMMANDS = {
    "up": ("slurmbed.cli.life:up", "start the cluster and wait until it is ready"),
    "train": ("slurmbed.cli.course:train", "train a model on the cluster"),
    "compare": ("slurmbed.cli.course:compare", "train with one strategy after another, and compare them"),
    "mnist": ("slurmbed.cli.course:mnist", "train a convolutional network on MNIST with torchrun"),
    "bubble": ("slurmbed.cli.course:bubble", "measure how long the stages of a pipeline are idle"),
    "grade": ("slurmbed.cli.course:grade", "check the exercise of a lesson"),
    "launchers": ("slurmbed.cli.course:launchers", "run every launcher, and prove where its ranks ran"),
    "bench-collectives": ("slurmbed.cli.course:bench_collectives", "measure collectives between two nodes"),
    "list": ("slurmbed.cli.look:list_clusters", "show all clusters of this Docker engine"),
    "status": ("slurmbed.cli.look:status", "show nodes and jobs"),
    "shell": ("slurmbed.cli.reach:shell", "open a shell on the login node"),
    "exec": ("slurmbed.cli.reach:execute", "run one command in the cluster"),
    "load": ("slurmbed.cli.reach:load", "install a Python project or a wheel on all nodes"),
    "env": ("slurmbed.cli.reach:env", "print shell variables that put sbatch, srun ... on PATH"),
    "token": ("slurmbed.cli.reach:token", "print a token for Slurm's REST interface"),
    "logs": ("slurmbed.cli.look:logs", "show the output of the daemons"),
    "export-logs": ("slurmbed.cli.look:export_logs", "write all logs and Slurm's state to a folder"),
    "scale": ("slurmbed.cli.life:scale", "add or remove nodes while jobs run"),
    "down": ("slurmbed.cli.life:down", "stop the cluster; keep jobs, accounting and homes"),
    "clean": ("slurmbed.cli.life:clean", "remove the cluster: containers, volumes, network"),
    "purge": ("slurmbed.cli.life:purge", "remove the cluster and all images"),
    "init": ("slurmbed.cli.life:init", "copy the example workspace into a folder"),
    "config": ("slurmbed.cli.configuration:config", "check a configuration file, or print its schema"),
    "images": ("slurmbed.cli.images:images", "build, save, load, push or pull the images"),
    "doctor": ("slurmbed.cli.doctor:doctor", "check this machine"),
}
"""Name of a command to its module and function, and its help. A command is imported when it runs."""


class Commands(click.Group):
    """A group of commands that are imported when they run."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str]], **options: Any):
        super().__init__(name, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        module, _, function = self.table[name][0].partition(":")
        return getattr(import_module(module), function)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in self.table:
            raise UsageError(f"there is no command {args[0]!r}", nearest(args[0], self.table))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """A hint: the known name that is nearest, or all of them."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


def options_of_make(command: click.Command, arguments: Sequence[str]) -> list[str]:
    """``NODES=8``, make's way, as ``--nodes=8``; ``RETAIN=1`` as ``--retain``.

    Raises:
        UsageError: a name that the command does not know, with the nearest one; a flag that is neither 0 nor 1.
    """
    known = {each.name.upper(): each for each in command.params if isinstance(each, click.Option) and each.name}
    found = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (equals and name.isupper() and name.replace("_", "").isalpha()):
            found.append(argument)
        elif name not in known:
            raise UsageError(f"{argument}: {command.name} takes no {name}", nearest(name, [*known]))
        elif not known[name].is_flag:
            found.append(f"{known[name].opts[0]}={value}")
        elif value not in ("", "0", "1"):
            raise UsageError(f"{argument}: not known", f"{name}=1 for yes, {name}=0 for no")
        elif value:
            found += known[name].opts[:1] if value == "1" else known[name].secondary_opts[:1]
    return found


def run(group: Commands, arguments: Sequence[str]) -> None:
    """Run a command of ``group``; ends the process with its exit status: 2 for bad input, 1 for other failures."""
    interrupt.raise_on_signals()
    name = arguments[0] if arguments and arguments[0] in group.table else ""
    try:
        if name:
            command = group.get_command(click.Context(group), name)
            arguments = [name, *options_of_make(command, arguments[1:])]
        sys.exit(group.main(list(arguments), prog_name=group.name, standalone_mode=False))
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        fail(group, name, error.format_message(), 2)
    except SlurmbedError as error:
        fail(group, name, str(error), 2 if isinstance(error, UsageError) else 1)
    except (KeyboardInterrupt, click.Abort) as stopped:
        cause = stopped.__cause__ or stopped  # click raises Abort from what interrupted it
        sys.exit(128 + (cause.number if isinstance(cause, Interrupted) else signal.SIGINT))


def fail(group: Commands, name: str, text: str, status: int) -> None:
    from slurmbed.cli.console import errors  # --help needs no rich

    errors.print(f"{group.name} {name}".rstrip() + f": {text}", style="red", markup=False, highlight=False)
    sys.exit(status)


def make_group() -> Commands:
    group = Commands("slurmbed", COMMANDS, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
    return click.version_option(package_name="slurmbed", prog_name="slurmbed")(group)


def main() -> None:
    run(make_group(), sys.argv[1:])
