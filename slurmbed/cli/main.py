"""The command line: `slurmbed up NODES=8` and `make up NODES=8` are the same words."""

import argparse
import os
import re
import sys

from rich.console import Console
from rich.table import Table

from dev import bench, bench_train
from dev import suites as testing
from slurmbed import interrupt
from slurmbed.cli import doctor
from slurmbed.cluster.cluster import USER, Cluster
from slurmbed.cluster.host import MAX_NODES, whole_number
from slurmbed.cluster.plan import DEFAULT_NODES, Settings
from slurmbed.course import bubble, collectives, comparing, launchers, mnist, training
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.interrupt import Interrupted
from slurmbed.slurm.parse import Node

console = Console(soft_wrap=not sys.stdout.isatty())
errors = Console(stderr=True, soft_wrap=True)


def say(text: str) -> None:
    errors.print(text, style="dim", markup=False, highlight=False)


def up(args: argparse.Namespace) -> None:
    cluster = make_cluster(args)
    show_nodes(cluster, cluster.up())
    port = cluster.compose.port("login", 22)
    console.print(
        f"submit jobs: make train | a shell: make shell | ssh: ssh -p {port} {USER}@127.0.0.1", highlight=False
    )


def train(args: argparse.Namespace) -> None:
    if args.nodes:
        whole_number("NODES", args.nodes, 1, MAX_NODES)
    check_run(args)
    parallel = args.parallel or "tp"
    known = asked_for(args, "PARALLEL", parallel)
    nodes = int(args.nodes or known[parallel])
    training.train(running(args, nodes), console, parallel, nodes, args.steps, args.text)


def compare(args: argparse.Namespace) -> None:
    check_run(args)
    nodes = asked_for(args, "STRATEGIES", args.strategies)
    comparing.compare(running(args, max(nodes.values())), console, nodes, args.steps, args.text)


def check_run(args: argparse.Namespace) -> None:
    """UsageError for words of a run that can be refused without asking an engine."""
    if args.steps:
        whole_number("STEPS", args.steps, 1, 10**9)
    if args.text and not os.access(args.text, os.R_OK):
        raise UsageError(f"TEXT={args.text}: no such file, or not readable", "name a text file")


def asked_for(args: argparse.Namespace, word: str, names: str) -> dict[str, int]:
    """The strategies ``names`` of the cluster's workspace, all if empty, and the nodes that their job scripts want."""
    cluster = make_cluster(args)
    cluster.ensure_engine()
    cluster.require_own()
    return training.require_strategies(cluster.workspace(), word, names)


def digits(args: argparse.Namespace) -> None:
    nodes = whole_number("NODES", args.nodes or DEFAULT_NODES, 1, MAX_NODES)
    if args.epochs:
        whole_number("EPOCHS", args.epochs, 1, 10**6)
    mnist.train(running(args, nodes), console, nodes, args.epochs)


def measure_bubble(args: argparse.Namespace) -> None:
    nodes = whole_number("NODES", args.nodes or DEFAULT_NODES, 2, MAX_NODES)
    bubble.bubble(running(args, nodes), console, nodes)


def running(args: argparse.Namespace, nodes: int) -> Cluster:
    """The cluster, with so many working nodes or more; started or grown if need be."""
    cluster = make_cluster(args)
    cluster.ensure_engine()
    cluster.require_own()
    asked = args.cpus or args.memory or args.slurm or args.torch or args.launchers
    if asked or not cluster.is_running() or cluster.working_nodes() < nodes:
        # Never fewer than are there: training on two nodes does not shrink a cluster of eight.
        cluster = make_cluster(args, nodes="", least_nodes=nodes)
        show_nodes(cluster, cluster.up())
    return cluster


def launch(args: argparse.Namespace) -> None:
    launchers.require(args.only)
    cluster = make_cluster(args)
    cluster.require_running()
    cluster.require_own()
    launchers.run_all(cluster, console, args.only)


def status(args: argparse.Namespace) -> None:
    cluster = make_cluster(args)
    cluster.require_running()
    show_nodes(cluster, cluster.slurm.nodes())
    console.print(cluster.slurm.runner(["squeue"]).check().stdout.rstrip(), markup=False, highlight=False)


def shell(args: argparse.Namespace) -> None:
    cluster = make_cluster(args)
    cluster.require_running()
    options = ("--interactive", *(["--tty"] if sys.stdin.isatty() else []), "--workdir", "/workspace")
    argv = cluster.compose.exec_argv("login", ["bash", "-l"], args.user or USER, options)
    os.execvp(argv[0], argv)


def logs(args: argparse.Namespace) -> None:
    if args.follow not in ("", "1"):
        raise UsageError(f"FOLLOW={args.follow}: not known", "FOLLOW=1, or leave it out")
    cluster = make_cluster(args)
    cluster.require()
    words = ["logs", "--tail", "50", *(["--follow"] if args.follow else []), *([args.service] if args.service else [])]
    shown = cluster.compose.by_name(*words, timeout=24 * 3600, capture=False)
    if not shown.ok:
        services = ", ".join(c.service for c in cluster.compose.containers())
        raise UsageError(f"no logs of {args.service or cluster.name}", f"services: {services}")


def scale(args: argparse.Namespace) -> None:
    cluster = make_cluster(args)
    if not args.nodes:
        raise UsageError("scale: to how many nodes?", "for example: make scale NODES=3")
    show_nodes(cluster, cluster.scale())


def down(args: argparse.Namespace) -> None:
    make_cluster(args).down()
    console.print("stopped; jobs, accounting and home directories are kept: make up")


def clean(args: argparse.Namespace) -> None:
    cluster = make_cluster(args)
    cluster.clean()
    console.print(f"removed the containers, volumes and network of {cluster.name}; workspace/ is as it was")


def purge(args: argparse.Namespace) -> None:
    make_cluster(args).purge()
    console.print("removed cluster and images; cached build steps go with: docker builder prune")


def test(args: argparse.Namespace) -> None:
    sys.exit(testing.test(args.only, say))


def test_launchers(args: argparse.Namespace) -> None:
    sys.exit(testing.test_launchers(say))


SHAPE = "cpus memory slurm torch launchers retain adopt"
COMMANDS = {
    "up": (up, "start the cluster and wait until it is ready", f"nodes {SHAPE} gpus config ssh_port workspace"),
    "train": (train, "train a model on the cluster", f"nodes {SHAPE} parallel steps text"),
    "compare": (compare, "train by one strategy after another, and compare", f"{SHAPE} strategies steps text"),
    "mnist": (digits, "train a convolutional network on MNIST, several ranks a node", f"nodes {SHAPE} epochs"),
    "bubble": (measure_bubble, "measure and draw how long a pipeline's stages wait for each other", f"nodes {SHAPE}"),
    "launchers": (launch, "every launcher people use, one after another, and where its ranks ran", "only adopt"),
    "status": (status, "nodes and jobs", ""),
    "shell": (shell, "a shell on the login node", "user"),
    "logs": (logs, "what the daemons say", "service follow"),
    "scale": (scale, "grow or shrink the running cluster", "nodes adopt"),
    "down": (down, "stop the cluster; jobs, accounting and homes are kept", "adopt"),
    "clean": (clean, "remove its containers, volumes and network", "adopt"),
    "purge": (purge, "remove the images too", "adopt"),
    "test": (test, "lint and all tests", "only"),
    "test-launchers": (test_launchers, "the tests of launchers: each at every size", ""),
    "bench-train": (
        bench_train.main,
        "tokens a second and seconds to a loss, one process beside two nodes",
        "seeds text",
    ),
    "bench": (bench.main, "how fast: ratios measured in one run", ""),
    "bench-collectives": (collectives.main, "how fast two nodes talk, beside iperf3's limit", "largest adopt"),
    "doctor": (doctor.main, "check this machine", ""),
}
OPTIONS = {
    "nodes": "number of nodes (default: as many as there are, or 2; train: as the strategy's job script says)",
    "cpus": "CPUs that each node offers (default: the host's, shared out)",
    "memory": "memory of each node, like 2G (default: three quarters of the host's, shared out)",
    "gpus": "GPUs of each node: of the host, or emulated where it has none: 8, h100:8 or emulated:h100:8 (default: 0)",
    "config": "a file that says all this, and partitions, QOS and accounts, like clusters/campus.yaml",
    "slurm": "version of Slurm: 24.11 (default) or 26.05",
    "torch": "debian (default, CPU) or pypi (CUDA)",
    "launchers": "0: nodes without accelerate, DeepSpeed, Ray, Open MPI and the like (default: 1)",
    "ssh_port": "port of the login node on 127.0.0.1 (default: a free one)",
    "retain": "1: keep what a failed start leaves",
    "adopt": "1: use the cluster of this name although another clone made it",
    "parallel": "strategy: the name of a script in workspace/jobs/ (default: tp)",
    "strategies": "names of scripts in workspace/jobs/, with commas between (default: every strategy there)",
    "seeds": "runs of each way to train, 1 to 5 (default: 3)",
    "steps": "optimiser steps",
    "epochs": "times that every image is seen",
    "text": "a text file to train on instead of Shakespeare",
    "workspace": "folder of the host that nodes see as /workspace (default: the project's workspace/)",
    "user": "alice (default), bob or root",
    "service": "one service, like slurmctld or node-1",
    "follow": "1: go on as new lines come",
    "largest": "bytes of the largest tensor (default: 64 MiB)",
    "only": "tests: unit, training, cluster or smoke; launchers: names like torchrun,ray",
}


def make_cluster(args: argparse.Namespace, **changed: str | int) -> Cluster:
    given = {name: value for name in Settings.__dataclass_fields__ if (value := getattr(args, name, ""))}
    return Cluster(Settings(**{**given, **changed}), say)


def show_nodes(cluster: Cluster, nodes: list[Node]) -> None:
    table = Table(title=f"cluster {cluster.name}")
    gres = ["GRES"] if any(node.gres for node in nodes) else []
    partitions = ["partitions"] if len({node.partitions for node in nodes}) > 1 else []
    for heading in ("node", "state", "CPUs", "memory", *gres, *partitions):
        table.add_column(heading, justify="right" if heading in ("CPUs", "memory") else "left")
    for node in nodes:
        state = "+".join([node.state, *(flag for flag in node.flags if flag not in ("CLOUD", "DYNAMIC_NORM"))])
        more = [*([node.gres] if gres else []), *([", ".join(node.partitions)] if partitions else [])]
        table.add_row(node.name, state.lower(), str(node.cpus), f"{node.memory} MiB", *more)
    console.print(table)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurmbed", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (function, text, options) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(function=function)
        command.add_argument(
            "--name", default=os.environ.get("SLURMBED_NAME", ""), help="the cluster's name (slurmbed)"
        )
        for option in options.split():
            command.add_argument(f"--{option.replace('_', '-')}", default="", help=OPTIONS[option])
    return parser


def as_option(word: str) -> str:
    """``NODES=8``, make's way, as ``--nodes=8``."""
    match = re.fullmatch(r"([A-Z][A-Z_]*)=(.*)", word, re.DOTALL)
    return f"--{match[1].lower().replace('_', '-')}={match[2]}" if match else word


def main(argv: list[str] | None = None) -> None:
    interrupt.like_ctrl_c()
    args = build_parser().parse_args([as_option(word) for word in (sys.argv[1:] if argv is None else argv)])
    try:
        args.function(args)
    except SlurmbedError as error:
        errors.print(f"slurmbed {args.command}: {error}", style="red", markup=False, highlight=False)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except Interrupted as stopped:
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        sys.exit(130)
