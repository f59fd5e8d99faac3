"""The places that people work in: programs of a login node, module files, scratch, and what a job cannot reach."""

from harness import engine
from harness.jobs import srun_by_rank, wait_until_idle

PROGRAMS = (
    *("bc", "bzip2", "curl", "file", "g++", "gcc", "git", "ip", "jq", "less", "make", "man", "mpicc", "nano", "ping"),
    *("pip", "python3-config", "rsync", "ss", "strace", "tmux", "unzip", "vim", "wget", "xz"),
)
BUILD = r"""#!/bin/bash
set -eu
cd "$SLURM_TMPDIR"
cat >rank.c <<C
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	printf("rank %d of %d\n", rank, size);
	return MPI_Finalize();
}
C
mpicc -Wall -Werror -o rank rank.c
mpirun -n 2 ./rank
echo '#include <iostream>
int main() { std::cout << "built as C++" << std::endl; }' >hello.cc
g++ -o hello hello.cc
./hello
echo '#include <Python.h>
int main(void) { Py_Initialize(); PyRun_SimpleString("print(\"embeds Python\")"); return Py_FinalizeEx(); }' >embed.c
gcc -o embed embed.c $(python3-config --includes --ldflags --embed)
./embed
"""
MODULES = r"""#!/bin/bash
set -eu
module load pytorch/2 openmpi gcc python
module -t list 2>&1 | sort | xargs
ls "$MPI_HOME/include/mpi.h"
module purge
module load cuda/99 || echo there is no such module
"""
PACKAGE = r"""
set -eu
cd "$(mktemp -d)"
mkdir own_package
echo 'print("own package")' >own_package/__init__.py
cat >pyproject.toml <<TOML
[project]
name = "own-package"
version = "1"
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
TOML
python3 -m venv --system-site-packages venv
for pip in pip venv/bin/pip; do $pip install --quiet --no-index --no-build-isolation .; done
cd /
"$OLDPWD/venv/bin/python" -c 'import own_package'
python3 -c 'import own_package'
pip uninstall --quiet --yes own_package
"""
# What completion offers at a prompt: types into a terminal of its own, and reads until the word is there.
COMPLETE = r"""
import os, pty, select, sys, time
child, terminal = pty.fork()
if not child:
    os.execvp("bash", ["bash", "-li"])
read, typed, end = b"", False, time.monotonic() + 120
while b"--partition" not in read and time.monotonic() < end:
    if select.select([terminal], [], [], 1)[0]:
        read += os.read(terminal, 4096)
    if not typed and b"$ " in read:
        os.write(terminal, b"sbatch --partit\t")
        typed = True
print("--partition" if b"--partition" in read else read)
"""


def on(cluster, service: str, script: str, user: str = "alice"):
    return engine.execute(cluster, service, ["bash", "-s"], user=user, stdin=script, timeout=300)


def script(workspace, name: str, text: str) -> str:
    (workspace / name).write_text(text)
    return name


def test_login_has_what_login_nodes_have(slurm_cluster):
    missing = on(
        slurm_cluster, "login", f"for each in {' '.join(PROGRAMS)}; do command -v $each >/dev/null || echo $each; done"
    )
    assert missing.check().output == ""
    assert "Submit a batch script to Slurm" in on(slurm_cluster, "login", "man sbatch").check().stdout
    assert "1 received" in on(slurm_cluster, "login", "ping -c 1 -W 10 node-1").check().stdout
    for locale in ("C.UTF-8", "de_DE.UTF-8", "en_US.UTF-8"):
        printed = on(
            slurm_cluster, "login", f"LC_ALL={locale} perl -e 'print \"fine\"'; LC_ALL={locale} locale charmap"
        )
        assert printed.check().output == "fineUTF-8\n"  # and no warning
    commit = "cd $(mktemp -d) && git init -q . && git -c user.name=a -c user.email=a@b commit -qm one --allow-empty"
    assert on(slurm_cluster, "login", f"{commit} && git log --format=%s").check().stdout == "one\n"


def test_a_tab_completes_sbatchs_options(slurm_cluster):
    completed = engine.execute(slurm_cluster, "login", ["python3", "-c", COMPLETE], user="alice", timeout=180)
    assert completed.check().stdout == "--partition\n"


def test_programs_are_built_in_a_job(slurm, workspace):
    job = slurm.run("--ntasks=2", script(workspace, "build.sh", BUILD))
    assert sorted(job.stdout.splitlines()) == ["built as C++", "embeds Python", "rank 0 of 2", "rank 1 of 2"]


def test_a_user_installs_packages(slurm_cluster):
    assert on(slurm_cluster, "login", PACKAGE).check().stdout == "own package\n" * 2


def test_modules_are_loaded_wherever_bash_runs(slurm_cluster, slurm, workspace):
    """The versions are those that are installed, so that scripts ask for a major version, or for none."""
    package = on(slurm_cluster, "login", "dpkg-query --show --showformat '${Version}' python3-torch").check().stdout
    installed = package.partition("+")[0]
    job = slurm.run(script(workspace, "modules.sh", MODULES))
    loaded, header, *_, last = job.stdout.splitlines()
    assert [each.partition("/")[0] for each in loaded.split()] == ["gcc", "openmpi", "python", "pytorch"]
    assert f" pytorch/{installed}" in loaded
    assert header.endswith("/include/mpi.h")
    assert last == "there is no such module"
    command = "module load openmpi && echo $LOADEDMODULES"
    for argv in (
        ["bash", "-lc", command],
        ["bash", "-ic", command],
        ["ssh", "login", command],
        ["srun", "bash", "-c", command],
    ):
        typed = engine.execute(slurm_cluster, "login", argv, user="alice")
        assert typed.stdout.startswith("openmpi/"), typed


def test_scratch_is_shared_and_tmp_is_not(slurm_cluster):
    in_all = srun_by_rank(
        slurm_cluster, "echo $SLURM_PROCID >/scratch/alice.$SLURM_PROCID; stat -c %a /scratch", "--nodes=2"
    )
    assert in_all == ["1777"] * 2
    assert on(slurm_cluster, "login", "cat /scratch/alice.*; rm /scratch/alice.*").check().stdout == "0\n1\n"
    srun_by_rank(slurm_cluster, "touch /tmp/on-node-1", "--nodelist=node-1")
    assert not engine.execute(slurm_cluster, "node-2", ["ls", "/tmp/on-node-1"]).ok
    engine.execute(slurm_cluster, "node-1", ["rm", "/tmp/on-node-1"]).check()


def test_a_job_has_a_folder_of_its_own_on_each_node_until_it_ends(slurm_cluster, slurm):
    look = 'touch "$SLURM_TMPDIR/$SLURM_JOB_ID"; stat -c "%U %a" "$SLURM_TMPDIR"; ls -A "$SLURM_TMPDIR"'
    job = slurm.run("--nodes=2", "--wrap", f"srun bash -c '{look}'")
    lines = job.stdout.splitlines()
    assert lines.count("alice 700") == lines.count(job.id) == 2
    wait_until_idle(slurm_cluster)
    for node in ("node-1", "node-2"):
        assert engine.execute(slurm_cluster, node, ["ls", "-A", "/localscratch"]).check().stdout == ""


def test_files_are_copied_with_rsync_in_a_job(slurm):
    copy = "cd $SLURM_TMPDIR && mkdir from && echo kept >from/file && rsync -a from login:/tmp/rsync"
    job = slurm.run("--wrap", f"{copy} && ssh login 'cat /tmp/rsync/from/file; rm -r /tmp/rsync'")
    assert job.stdout == "kept\n"


def test_a_job_reaches_slurms_daemons_and_not_the_database(slurm_cluster):
    """By slurmdbd a job has its accounting, as each user; the database knows no users."""
    assert list(engine.inspect(slurm_cluster, "db")["NetworkSettings"]["Networks"]) == ["none"]
    reach = "timeout 5 bash -c 'exec 3<>/dev/tcp/{0}/{1}' 2>/dev/null && echo {1}"
    doors = (("slurmctld", 6817), ("slurmdbd", 6819), ("slurmdbd", 3306), ("db", 3306))
    look = "; ".join(reach.format(*door) for door in doors)
    assert srun_by_rank(slurm_cluster, f"{look}; true") == ["6817", "6819"]
    assert srun_by_rank(slurm_cluster, "sacct --noheader --format=User --allocations --jobs=$SLURM_JOB_ID") == ["alice"]
