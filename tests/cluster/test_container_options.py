"""How options of containers in jobs are given, what PyTorch finds, and what stays closed whatever is asked for."""

import pytest

from harness import engine, job_images, jobs
from slurmbed.wait import Pending, wait_until


def test_pyxis_variables_are_options_and_options_override_them(port_of_call, ship):
    alice = port_of_call.as_user("alice")
    variables = ["env", f"PYXIS_CONTAINER_IMAGE={ship}", "PYXIS_CONTAINER_WORKDIR=/tmp", "PYXIS_CONTAINER_READONLY=1"]
    step = ["sh", "-c", "cat /harbour/sign; pwd; touch /crate"]
    ran = alice([*variables, "srun", "--quiet", *step])
    assert ran.stdout.splitlines() == ["all aboard", "/tmp"]
    assert "Read-only file system" in ran.stderr
    ran = alice([*variables, "srun", "--quiet", "--container-workdir=/usr", "--container-writable", *step])
    assert ran.check().stdout.splitlines() == ["all aboard", "/usr"]
    assert alice(["env", "PYXIS_CONTAINER_WORKDIR=/tmp", "srun", "--chdir=/usr", "pwd"]).check().stdout == "/usr\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--container-workdir=/tmp"], "need --container-image"),
        (["--container-name=../../bob", "--container-image=ship"], "--container-name"),
        (["--container-image=ship", "--container-mount-home", "--no-container-mount-home"], "its opposite too"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_job_is_there(port_of_call, words, told):
    ran = port_of_call.slurm.runner(["srun", *words, "hostname"])
    assert ran.returncode == 1
    assert told in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_salloc_hands_its_container_on(port_of_call, ship):
    steps = "cat /harbour/sign || srun sh -c 'cat /harbour/sign; pwd'; srun --container-workdir=/usr sh -c pwd"
    words = ["salloc", "--quiet", f"--container-image={ship}", "--container-workdir=/tmp", "sh", "-c", steps]
    assert port_of_call.as_user("alice")(words).check().stdout.splitlines() == ["all aboard", "/tmp", "/usr"]


def test_what_the_entrypoint_prints_is_shown_on_request(port_of_call, srun):
    entry = port_of_call.workspace() / "entry"
    entry.write_text('#!/bin/sh\necho "welcome, $(cat sign)"\nexec "$@"\n')
    entry.chmod(0o755)
    words = ("--ntasks=2", "--nodes=1", "--container-entrypoint", "--container-mounts=/workspace/entry:/harbour/entry")
    assert srun("true", *words).check().stderr == ""
    assert srun("true", *words, "--container-entrypoint-log").check().stderr == "welcome, all aboard\n"


def test_an_entrypoint_that_does_not_end_ends_with_its_job(port_of_call, ship):
    entry = port_of_call.workspace() / "entry"
    entry.write_text('#!/bin/sh\n"$@"\nsleep 601\n')
    entry.chmod(0o755)
    words = f"--container-image={ship} --container-entrypoint --container-mounts=/workspace/entry:/harbour/entry"
    job_id = port_of_call.slurm.submit("--nodelist=node-1", "--output=/dev/null", "--wrap", f"srun {words} true")
    wait_until(lambda: process_of(port_of_call, "alice", "sleep 601"), what="the entrypoint runs", timeout=120)
    port_of_call.slurm.cancel(job_id)
    jobs.wait_until_idle(port_of_call, timeout=45)


def process_of(cluster, user: str, command: str) -> str:
    """Its number on node-1; Pending if there is none."""
    found = engine.execute(cluster, "node-1", ["pgrep", "-u", user, "-fx", command])
    if not found.ok:
        raise Pending("not yet")
    return found.stdout.strip()


def test_what_the_task_prolog_unsets_is_unset(port_of_call, srun):
    prolog = "/etc/slurm/task_prolog.d/90-test"
    make = f"printf '%s\\n' '#!/bin/sh' 'echo unset BOAT' >{prolog}; chmod 755 {prolog}"
    engine.execute(port_of_call, "node-1", ["sh", "-c", make]).check()
    try:
        shown = srun('echo "[$BOAT]"', "--export=ALL,BOAT=red", "--nodelist=node-1")
    finally:
        engine.execute(port_of_call, "node-1", ["rm", prolog])
    assert shown.check().stdout == "[]\n"


def test_ranks_of_an_image_with_pytorch_meet_by_env(port_of_call, srun):
    name = f"{port_of_call.name}-pytorch"
    job_images.make(port_of_call, name, job_images.SHIP, [*job_images.OF_SHIP, "ENV PYTORCH_VERSION=2.9.0"])
    image = job_images.save(port_of_call, name, "pytorch.tar")
    engine.docker("rmi", name)
    shown = "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $((61000 + SLURM_JOB_ID % 4536))"
    words = ("--nodes=2", "--ntasks-per-node=2")
    ranks = sorted(srun(shown, *words, image=image).check().stdout.splitlines())
    assert [line.split()[:4] for line in ranks] == [[str(rank), str(rank % 2), "4", "node-1"] for rank in range(4)]
    assert all(line.split()[4] == line.split()[5] for line in ranks)
    own = srun(shown, *words, "--export=ALL,RANK=9,MASTER_PORT=5", image=image).check().stdout.splitlines()
    assert sorted((line.split()[0], line.split()[4]) for line in own) == [(str(rank), "5") for rank in range(4)]
    assert srun(shown).check().stdout.split()[:-1] == [], "an image without PyTorch"


@pytest.fixture
def bobs_sleep(port_of_call):
    """The number of a process of bob's on node-1."""
    bob = port_of_call.as_user("bob")
    words = ["--nodelist=node-1", "--ntasks=1", "--mem=100M", "--output=/dev/null", "--wrap", "exec sleep 602"]
    job_id = bob(["sbatch", "--parsable", *words]).check().stdout.strip()
    yield wait_until(lambda: process_of(port_of_call, "bob", "sleep 602"), what="bob's job runs", timeout=120)
    bob(["scancel", job_id])


def test_keys_and_what_is_another_users_stay_closed_to_root_in_a_container(port_of_call, srun, bobs_sleep):
    keys = engine.execute(port_of_call, "node-1", ["find", "/keys", "-type", "f"]).check().stdout.split()
    assert {"/keys/munge/munge.key", "/keys/ssh/ssh_host_ed25519_key"} <= set(keys)
    closed = [*keys, *(f"/proc/{bobs_sleep}/{name}" for name in ("mem", "environ", "root/etc/hostname"))]
    mounts = "--container-mounts=/keys:/keys,/var/lib/container-images:/images"
    script = f"cat {' '.join(closed)}; ls /images/bob; id -u"
    ran = srun(script, "--nodelist=node-1", "--container-remap-root", mounts)
    assert ran.check().stdout == "0\n"
    assert ran.stderr.splitlines() == [
        *(f"cat: {path}: Permission denied" for path in closed),
        "ls: cannot open directory '/images/bob': Permission denied",
    ]


def test_a_task_in_a_container_is_held_as_one_outside_it(srun):
    shown = "grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status"
    held = srun(shown).check().stdout
    assert held.split() == ["CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]
