"""The command line: make's way and the usual way, and refusals before anything starts."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.__main__ import COMMANDS as DEV_COMMANDS
from slurmbed.cli import course
from slurmbed.cli import main as cli
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.images import digest
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.snapshot import Named, Snapshot
from slurmbed.project import ROOT

# No targets of make's.
COMMANDS_ALONE = {"init", "list", "exec", "env", "token", "load", "export-logs", "config", "images"}
MAKEFILE = (ROOT / "Makefile").read_text()


def call(*arguments: str) -> None:
    cli.run(cli.make_group(), arguments)


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        call(*arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def in_make(variable: str) -> set[str]:
    return set(MAKEFILE.split(f"\n{variable} := ")[1].splitlines()[0].split())


def test_makes_words_are_options():
    up = cli.make_group().get_command(None, "up")
    typed = ["NODES=8", "SSH_PORT=2222", "CONFIG=a b=c.yaml", "RETAIN=1", "ADOPT=0", "NVIDIA_SMI=0", "--name", "x"]
    options = ["--nodes=8", "--ssh-port=2222", "--config=a b=c.yaml", "--retain", "--no-nvidia-smi", "--name", "x"]
    assert cli.options_of_make(up, typed) == options


def test_every_target_of_the_makefile_is_a_command():
    assert in_make("TARGETS") == set(cli.COMMANDS) - COMMANDS_ALONE
    assert in_make("FOR_DEVELOPERS") == set(DEV_COMMANDS)
    for target in (*in_make("TARGETS"), *in_make("FOR_DEVELOPERS")):
        assert f"#: make {target}" in MAKEFILE


def test_every_command_is_where_the_table_says_and_has_a_line_of_help():
    group = cli.make_group()
    for name in cli.COMMANDS:
        assert group.get_command(None, name).help, name


def test_every_help_has_an_example(capsys):
    calls = [(name,) for name in cli.COMMANDS] + [("config", "check"), ("config", "schema")]
    for words in calls:
        with pytest.raises(SystemExit):
            call(*words, "--help")
        examples = capsys.readouterr().out.partition("\n\n")[2]
        assert f"slurmbed {' '.join(words)}" in examples, words


def test_clean_of_a_wrong_name_fails_with_the_names_there_are(capsys, monkeypatch):
    info = EngineInfo("ID", 2, 4096, "/", True, True, ("runc",))
    left = Named("volume", "other_home", {"com.docker.compose.project": "other", "org.slurmbed": "cluster"})
    monkeypatch.setattr(Cluster, "require_engine", lambda self: None)
    monkeypatch.setattr(Cluster, "look", lambda self: Snapshot(self.name, info, (), (left,), {}))
    assert "no such cluster: othr\nthere are: other" in refused(capsys, "clean", "--name", "othr")


def test_help_shows_choices_and_defaults(capsys):
    with pytest.raises(SystemExit) as ended:
        call("up", "--help")
    assert not ended.value.code
    shown = capsys.readouterr().out
    for text in ("--slurm [24.11|26.05]", "[default: 24.11]", "--flavor [slim|torch|full]", "[default: full]"):
        assert text in shown


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("up", "[default: as many as exist, or 2]"),
        ("scale", "[required]"),
        ("train", "[default: as the strategy's job script says]"),
        *((name, "[default: 2]") for name in ("mnist", "bubble", "grade")),
    ],
)
def test_help_shows_how_many_nodes_a_command_takes(capsys, command, shown):
    with pytest.raises(SystemExit):
        call(command, "--help")
    nodes = " ".join(capsys.readouterr().out.partition("--nodes TEXT")[2].split())
    assert nodes.startswith(f"number of nodes {shown} --")


@pytest.mark.parametrize("command", ["mnist", "grade --lesson 3"])
def test_a_command_takes_two_nodes_unless_told_otherwise(monkeypatch, command):
    asked = []
    monkeypatch.setattr(course, "prepare", lambda settings, draws: SimpleNamespace(ensure=asked.append))
    for module in (course.digits, course.grading):
        monkeypatch.setattr(module, "train" if module is course.digits else "grade", lambda *_: None)
    for words in (command, f"{command} --nodes 3"):
        with suppress(SystemExit):
            call(*words.split())
    assert asked == [2, 3]


def test_help_imports_nothing_that_takes_long():
    program = "import sys; from slurmbed.cli import main as m; m.make_group().list_commands(None); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"docker", "matplotlib", "pydantic", "rich", "yaml", "jinja2", "requests"}


def test_a_shell_completes_commands_and_choices():
    words = {"COMP_WORDS": "slurmbed up --slurm ", "COMP_CWORD": "3"}
    argv = [Path(sys.executable).parent / "slurmbed"]
    env = {**os.environ, **words, "_SLURMBED_COMPLETE": "bash_complete"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert "plain,24.11" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["up", "NODES=0"], "NODES=0: not a whole number from 1 to 256"),
        (["up", "--nodes", "abc"], "NODES=abc: not a whole number"),
        (["up", "SLURM=1.0"], "'1.0' is not one of '24.11', '26.05'"),
        (["up", "TORCH=jax"], "'jax' is not one of 'debian', 'pypi'"),
        (["up", "FLAVOR=fat"], "'fat' is not one of 'slim', 'torch', 'full'"),
        (["up", "GPUS=all"], "GPUS=all: write 2, h100:8,"),
        (["up", "NAME=Big"], "NAME=Big: not a cluster name"),
        (["up", "NODE=3"], "NODE=3: up takes no NODE\ndid you mean NODES?"),
        (["up", "--node=3"], "No such option '--node'"),
        (["up", "RETAIN=yes"], "RETAIN=yes: not known\nRETAIN=1 for yes"),
        (["up", "WORKSPACE=/no/such"], "WORKSPACE=/no/such: not a folder"),
        (["up", "MOUNT=/usr"], "MOUNT=/usr: containers cannot have a folder at this path"),
        (["up", "MOUNT=/no/such"], "MOUNT=/no/such: not a folder"),
        (["config", "check", "/no/such"], "/no/such: No such file"),
        (["exec"], "Missing argument 'ARGUMENTS...'"),
        (["load", "/no/such.whl"], "/no/such.whl is neither a wheel nor a folder with a pyproject.toml"),
        (["load", str(ROOT / "docs")], "is neither a wheel nor a folder"),
        (["export-logs", str(ROOT)], "exists and is not empty"),
        (["up", "CONFIG=/no/such"], "CONFIG=/no/such: no such file"),
        (["upp"], "there is no command 'upp'\ndid you mean up?"),
        (["scale"], "needs the number of nodes"),
        (["scale", "NODES=none"], "NODES=none: not a whole number"),
        (["logs", "FOLLOW=yes"], "FOLLOW=yes: not known"),
        (["compare", "STEPS=many"], "'many' is not a valid integer"),
        (["compare", "NODES=2"], "NODES=2: compare takes no NODES"),
        (["train", "STEPS=-1"], "-1 is not in the range"),
        (["mnist", "EPOCHS=0"], "0 is not in the range"),
        (["mnist", "NODES=0"], "NODES=0: not a whole number"),
        (["bubble", "NODES=1"], "a pipeline has two stages or more"),
        (["train", "TEXT=/no/such/file"], "'/no/such/file' does not exist"),
        (["images", "push", "https://registry.example.org"], "https://registry.example.org: not a registry"),
        (["images", "load", "/no/such"], "'/no/such' does not exist"),
        (["images", "save"], "Missing argument 'FILE'"),
        (["images", "build", "--flavor", "fat"], "'fat' is not one of"),
        (["images", "build", "--flavor", "slim", "--torch", "pypi"], "TORCH=pypi: the flavor slim has no torch"),
        (["launchers", "ONLY=magic"], "there is no launcher 'magic'"),
        (["init", str(ROOT)], "exists and is not empty"),
    ],
)
def test_bad_input_is_refused_before_an_engine_is_asked(capsys, monkeypatch, arguments, reason):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setattr(Cluster, "install_engine", lambda self: pytest.fail("an engine is installed"))
    assert reason in refused(capsys, *arguments)


@pytest.fixture
def engine(monkeypatch):
    """An engine with nothing on it."""
    info = EngineInfo("ID", 2, 4096, "/", True, True, ("runc",))
    monkeypatch.setattr(Cluster, "ensure_engine", lambda self: None)
    monkeypatch.setattr(Cluster, "lock", lambda *_: nullcontext())
    monkeypatch.setattr(Cluster, "look", lambda self: Snapshot(self.name, info, (), (), {}))


def test_no_disk(capsys, monkeypatch, engine):
    monkeypatch.setattr("slurmbed.cluster.host.free_disk", lambda _: 10)
    assert "10 MiB of disk are free" in refused(capsys, "up", "NAME=slurmbed-test-none")


@pytest.mark.parametrize("target", ["up", "train", "compare", "mnist"])
def test_the_engine_is_seen_to_before_anything_is_asked_of_it(monkeypatch, target):
    class EngineFirst(Exception):
        pass

    def ensure_engine(self):
        raise EngineFirst

    monkeypatch.setattr(Cluster, "ensure_engine", ensure_engine)
    monkeypatch.setattr(Cluster, "look", lambda self: pytest.fail("the engine was asked first"))
    with pytest.raises(EngineFirst):
        call(target)


def test_the_tag_of_images_is_said_without_an_engine(capsys):
    with pytest.raises(SystemExit) as ended:
        call("images", "tag", "--flavor", "slim", "--slurm", "26.05")
    assert not ended.value.code
    assert capsys.readouterr().out == f"26.05-slim-{digest()}\n"


def test_up_looks_for_images_in_the_registry_of_the_environment(monkeypatch, engine):
    class Asked(Exception):
        pass

    def obtain(choices, first, say, install, registry):
        raise Asked(registry)

    monkeypatch.setattr("slurmbed.cluster.host.free_disk", lambda _: None)
    monkeypatch.setenv("SLURMBED_REGISTRY", "registry.example.org/me")
    monkeypatch.setattr("slurmbed.cluster.transfer.obtain", obtain)
    with pytest.raises(Asked, match=r"^registry.example.org/me$"):
        call("up")


@pytest.mark.parametrize("target", ["train", "compare", "mnist", "bubble"])
def test_what_needs_torch_names_the_flavor_that_has_it(capsys, engine, target):
    said = refused(capsys, target, "FLAVOR=slim", "NAME=x")
    assert "the nodes of x have the flavor slim" in said
    assert "this needs the flavor full\nmake up NAME=x FLAVOR=full" in said


def test_launchers_run_on_a_cluster_that_is_there_and_install_nothing(capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setattr(Cluster, "install_engine", lambda self: pytest.fail("an engine is installed"))
    with pytest.raises(SystemExit):
        call("launchers")
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["CPUS=1", "MEMORY=1G", "SLURM=24.11", "TORCH=debian", "FLAVOR=torch"])
def test_what_is_asked_of_a_running_cluster_is_not_ignored(monkeypatch, engine, word):
    class Asked(Exception):
        pass

    def up(self):
        raise Asked

    monkeypatch.setattr(Cluster, "working_nodes", lambda self: 8)
    monkeypatch.setattr(Cluster, "up", up)
    with pytest.raises(Asked):
        call("mnist", "NODES=2", word)


def test_init_copies_a_workspace_that_jobs_can_run_in(tmp_path, capsys):
    folder = tmp_path / "mine"
    with pytest.raises(SystemExit):
        call("init", str(folder))
    assert (folder / "train.py").read_bytes() == (ROOT / "workspace" / "train.py").read_bytes()
    assert (folder / "runs").is_dir()
    assert f"--workspace {folder}" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_its_number(monkeypatch, engine, number):
    """128 and the signal, as shells have it."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, default)  # under nohup it is ignored, and stays so
    monkeypatch.setattr(Cluster, "up", lambda self: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as ended:
        call("up")
    assert ended.value.code == 128 + number
    signal.signal(number, before)


@pytest.mark.parametrize("word", ["TEXT=it's a.txt", "TEXT=a(1);echo b.txt", "TEXT=$HOME"])
def test_make_passes_words_on_as_they_were_typed(tmp_path, word):
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (tmp_path / "Makefile").write_text(MAKEFILE.replace(": pyproject.toml scripts/venv", ":"))
    (tmp_path / ".venv" / "ready").touch()
    (bin_folder / "slurmbed").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (bin_folder / "slurmbed").chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    argv = ["make", "--silent", "up", word]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["up", word], done.stderr


def test_compare_wants_the_nodes_of_its_largest_strategy(monkeypatch):
    happened = []
    there = SimpleNamespace(workspace=lambda: ROOT / "workspace", ensure=happened.append)
    monkeypatch.setattr(course, "prepare", lambda settings: there)
    monkeypatch.setattr(course.comparison, "compare", lambda cluster, console, nodes, asked: happened.append(nodes))
    with suppress(SystemExit):
        call("compare", "STRATEGIES=none,hybrid,pp")
    assert happened == [4, {"none": 1, "hybrid": 4, "pp": 2}]
