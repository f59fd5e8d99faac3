"""The commands for PATH on the host, with a `docker` that tells how it was called."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from slurmbed.project import ROOT

SHIMS = ROOT / "scripts" / "shims"
DOCKER = """#!/bin/sh
printf '%s\\n' "$@" >"$CALLS"
cat
exit 7
"""

RUNS_IT_HERE = """#!/bin/sh
while [ "$1" != c-login-1 ]; do shift; done
shift
PATH=${0%/*}:/usr/bin:/bin exec "$@"
"""
"""A `docker exec` whose container is this machine."""


@pytest.fixture
def call(tmp_path):
    """call("sbatch", words...) in the folder ``shared/deep``: its result, and the words that docker got."""
    folder, fakes = tmp_path / "shared" / "deep", tmp_path / "fakes"
    folder.mkdir(parents=True)
    fakes.mkdir()
    (fakes / "docker").write_text(DOCKER)
    (fakes / "docker").chmod(0o755)

    def call(
        command: str, /, *words: str, cwd: Path = folder, **more: str
    ) -> tuple[subprocess.CompletedProcess, list[str]]:
        chosen = {"SLURMBED_LOGIN": "c-login-1", "SLURMBED_USER": "alice", "SLURMBED_SHARED": f"/a b:{tmp_path}/shared"}
        env = {"PATH": f"{SHIMS}:{fakes}:{os.defpath}", "CALLS": str(tmp_path / "calls"), **chosen, **more}
        done = subprocess.run(
            [command, *words], cwd=cwd, env=env, input="typed\n", capture_output=True, text=True, timeout=60
        )
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return call


def test_every_command_is_the_one_script():
    for name in ("sbatch", "srun", "salloc", "squeue", "sacct", "sacctmgr", "scancel", "sinfo", "scontrol", "sattach"):
        assert (SHIMS / name).samefile(ROOT / "scripts" / "shim")
    assert (ROOT / "scripts" / "shim").stat().st_mode & stat.S_IXOTH


def test_the_command_runs_in_the_callers_folder_with_its_words_input_and_exit_status(call, tmp_path):
    done, words = call("srun", "-N2", "sh", "-c", "echo it's $HOME")
    assert words[:4] == ["exec", "--user=alice", f"--workdir={tmp_path}/shared/deep", *words[3:4]]
    assert words[-3:] == ["sh", "-c", "echo it's $HOME"]
    assert words.index("c-login-1") < words.index("srun")
    assert (done.stdout, done.returncode) == ("typed\n", 7)


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("srun cat", True),
        ("sbatch -N2", True),
        ("sbatch -o out.txt", True),
        ("sbatch --parsable job.sh 3", False),
        ("sbatch --wrap hostname", False),
        ("sbatch --wrap=hostname", False),
        ("scontrol show job", False),
        ("scontrol", True),
        ("squeue", False),
    ],
)
def test_only_a_command_that_reads_its_input_takes_it(call, tmp_path, words, reads):
    """`while read seed; do sbatch job.sh $seed; done <seeds` goes through all of them."""
    folder = tmp_path / "shared"
    (folder / "job.sh").write_text("#!/bin/sh\nhostname\n")
    (folder / "out.txt").write_text("an earlier job's\n")
    done, _ = call(*words.split(), cwd=folder)
    assert done.stdout == ("typed\n" if reads else "")


def test_the_callers_variables_go_along_but_not_those_of_the_machine(call):
    _, words = call(
        "sbatch", SEED="3", HOME="/root", LD_PRELOAD="", DOCKER_CONFIG="/x", **{"BASH_FUNC_f%%": "() { :; }"}
    )
    passed = {word.removeprefix("--env=") for word in words if word.startswith("--env=")}
    assert "SEED" in passed
    assert not passed & {"PATH", "HOME", "LD_PRELOAD", "DOCKER_CONFIG", "SLURMBED_LOGIN", "BASH_FUNC_f%%"}


def test_the_callers_variables_keep_their_values_whatever_their_names(tmp_path, call):
    """A program like the cluster's docker shows what it was given."""
    names = ("command", "each", "folder", "name", "client", "status", "signal", "pid_file", "with_pid")
    (tmp_path / "fakes" / "docker").write_text("#!/bin/sh\nenv\n")
    done, _ = call("srun", "hostname", **dict.fromkeys(names, "mine"))
    kept = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: kept[name] for name in names} == dict.fromkeys(names, "mine")


def test_a_folder_that_the_cluster_does_not_see_is_refused_with_what_to_do(call, tmp_path):
    for cwd in (tmp_path, tmp_path / "fakes"):
        done, words = call("sbatch", cwd=cwd)
        assert (done.returncode, words) == (2, [])
        assert f"the cluster does not see {cwd}: slurmbed up --mount '{cwd}'" in done.stderr


def test_a_command_that_uses_no_files_works_in_every_folder(call, tmp_path):
    _, words = call("squeue", "--me", cwd=tmp_path)
    assert "--workdir=/" in words
    assert words[-2:] == ["squeue", "--me"]


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("squeue -u anna -h", "squeue -u alice -h"),
        ("squeue -uanna", "squeue -ualice"),
        ("sacct --user=anna -j 7", "sacct --user=alice -j 7"),
        ("scancel --user anna", "scancel --user alice"),
        ("squeue --user=annabel --name anna", "squeue --user=annabel --name anna"),
        ("sbatch --comment anna job", "sbatch --comment anna job"),
    ],
)
def test_the_callers_name_is_that_of_the_clusters_user(call, typed, given):
    """Programs ask `squeue -u $USER`, and jobs are alice's."""
    _, words = call(*typed.split(), USER="anna")
    assert words[-len(given.split()) :] == given.split()


@pytest.mark.parametrize("here", [True, False])
def test_a_job_script_that_the_cluster_does_not_see_is_copied_there(call, tmp_path, here):
    """Programs like torchx write it into a temporary folder. Its name is the job's name."""
    script = tmp_path / "my job.sh"
    script.write_text("#!/bin/sh\nhostname\n")
    (tmp_path / "fakes" / "docker").write_text(RUNS_IT_HERE)
    (tmp_path / "fakes" / "sbatch").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@"; for each; do [ -f "$each" ] && cat "$each"; done; exit 5'
    )
    (tmp_path / "fakes" / "sbatch").chmod(0o755)
    typed = os.path.relpath(script, tmp_path / "shared" / "deep") if here else str(script)
    done, _ = call("sbatch", "--parsable", "", typed, typed)
    option, empty, copy, argument, *text = done.stdout.splitlines()
    assert (option, empty, argument) == ("--parsable", "", typed)
    assert copy != typed
    assert Path(copy).name == "my job.sh"
    assert text == ["#!/bin/sh", "hostname"] * 2
    assert done.returncode == 5
    assert not Path(copy).parent.exists()


def test_without_a_cluster_it_says_how_to_choose_one(call):
    done, words = call("squeue", SLURMBED_LOGIN="")
    assert (done.returncode, words) == (2, [])
    assert 'eval "$(slurmbed env)"' in done.stderr
