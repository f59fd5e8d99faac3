"""Containers in jobs: what a step finds in one, what it cannot do, and what is left of it. On a cluster of its own.

The image is made here: a shell and a few programs of the node image, with its libraries, and what the test looks for.
"""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import engine, job_images, jobs
from slurmbed import BatchJob
from slurmbed.process import run
from slurmbed.wait import wait_until

REFUSED_CALLS = ("bpf", "io_uring_setup", "keyctl", "perf_event_open", "userfaultfd")


@pytest.mark.newest
def test_a_step_on_two_nodes_runs_in_the_image_that_was_pushed(srun):
    ran = srun('echo "$(cat /harbour/sign) $(hostname) $SLURM_PROCID"; ls /etc/debian_version', "--nodes=2")
    assert sorted(ran.stdout.splitlines()) == ["all aboard node-1 0", "all aboard node-2 1"]
    assert "No such file" in ran.stderr, "the node's own files are not there"


def test_an_archive_is_an_image_too(srun):
    assert srun("cat sign", image="docker-archive:/workspace/ship.tar").check().stdout == "all aboard\n"


def test_where_a_step_starts_and_with_which_variables(srun):
    shown = "echo $(readlink /proc/self/cwd) $CARGO $BOAT $BOARDED"
    words = ("--export=ALL,BOAT=red,CARGO=sand",)
    assert srun(shown, *words).check().stdout.split() == ["/harbour", "bricks", "red"]
    assert srun(shown, *words, "--container-env=CARGO").check().stdout.split() == ["/harbour", "sand", "red"]
    entered = srun(shown, *words, "--container-workdir=/tmp", "--container-entrypoint").check().stdout
    assert entered.split() == ["/tmp", "bricks", "red", "yes"]


@pytest.mark.parametrize(("end", "status"), [("exit 42", 42), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)])
def test_how_a_program_ends_is_how_the_step_ends(srun, end, status):
    assert srun(end).returncode == status


def test_mounts_are_there_and_nothing_else_is_written_to(port_of_call, srun):
    folder = port_of_call.workspace() / "hold"
    folder.mkdir()
    folder.chmod(0o777)
    assert srun("touch /hold/crate; touch /gone", "--container-mounts=/workspace/hold:/hold").ok
    assert folder.joinpath("crate").is_file()
    refused = srun("touch /hold/box", "--container-mounts=/workspace/hold:/hold:ro")
    assert "Read-only file system" in refused.stderr
    assert "No such file" in srun("ls /gone").stderr, "what a step writes in its container goes with it"
    assert "Read-only file system" in srun("touch /gone", "--container-readonly").stderr
    assert not srun("ls ~/.bashrc").ok
    assert srun("ls ~/.bashrc", "--container-mount-home").ok


def test_root_in_a_container_is_the_user(port_of_call, srun):
    folder = port_of_call.workspace() / "of-root"
    folder.mkdir()
    folder.chmod(0o777)
    words = ("--container-remap-root", "--container-mounts=/workspace/of-root:/out,/etc:/node/etc")
    ran = srun("id -u; touch /out/file; cat /node/etc/ssh/*_key /proc/1/environ; echo x >/node/etc/passwd", *words)
    assert ran.stdout == "0\n"
    assert ran.stderr.count("Permission denied") + ran.stderr.count("No such file") >= 3
    alice = port_of_call.workspace().stat().st_uid
    assert folder.joinpath("file").stat().st_uid == alice
    assert srun("id -un").check().stdout == "alice\n"


def test_root_in_a_container_may_say_that_files_are_anybodys(port_of_call, ship, srun):
    """The kernel knows one user in a container; apt-get, tar and useradd end if it says so."""
    give = "touch /tmp/parcel; chown 42:42 /tmp/parcel"
    assert "Invalid argument" in srun(give).stderr
    assert srun(give, "--container-remap-root").check().stderr == ""
    chain = f"enroot start --root /workspace/root.sqsh sh -c '{give}'; enroot start /workspace/root.sqsh sh -c '{give}'"
    alice = port_of_call.as_user("alice")
    alice(["container-image", "save", ship, "/workspace/root.sqsh"]).check()
    assert srun(chain, image="").stderr.count("Invalid argument") == 1


def test_devices_of_the_node_can_be_mounted(srun):
    words = "--container-mounts=/dev:/dev,/dev/null:/hole"
    assert srun("echo x >/hole; echo x >/dev/null; cat /hole", words).check().stdout == ""


def test_tasks_of_a_node_share_one_container(srun):
    spaces = srun("readlink /proc/self/ns/mnt /proc/self/ns/user", "--nodes=1", "--ntasks=2").check().stdout.split()
    assert len(spaces) == 4
    assert len(set(spaces)) == 2


def test_a_named_container_is_kept_on_its_node_and_joined(port_of_call, ship, srun):
    first = ("--container-name=kept", "--nodelist=node-1")
    assert srun("mkdir /new; touch /new/file", *first).ok
    assert srun("ls /new", *first, image="").check().stdout == "file\n"
    elsewhere = srun("true", "--container-name=kept", "--nodelist=node-2", image="")
    assert "no container kept is kept on node-2" in elsewhere.stderr
    script = (
        f"#!/bin/sh\none='srun --ntasks=1 --overlap --mem=64M --container-name=joined'\n"
        f"$one --container-image={ship} sh -c 'readlink /proc/self/ns/mnt; "
        "until cat /tmp/there 2>/dev/null; do sleep 0.2; done' &\n"
        "first=$!\nfor try in $(seq 300); do grep -q mnt: runs/$SLURM_JOB_ID.log && break; sleep 0.2; done\n"
        "CARGO=sand $one --container-env=CARGO --container-workdir=/tmp sh -c 'readlink /proc/self/ns/mnt; "
        "echo met step $SLURM_STEP_ID with $CARGO in $(pwd) >/tmp/there; "
        "until test -e /tmp/last; do sleep 0.2; done' &\n"
        "wait $first\n$one --container-readonly true\n"
        "$one:exec sh -c 'readlink /proc/self/ns/mnt; touch /tmp/last'\nwait\n"
    )
    port_of_call.workspace().joinpath("join.sh").write_text(script)
    job_id = port_of_call.slurm.submit("--output=runs/%j.log", "--nodes=1", "--time=1", "join.sh")
    log = (port_of_call.workspace() / "runs" / f"{job_id}.log").read_text
    port_of_call.slurm.wait_completed(job_id, 120, log=log)
    lines = [line for line in log().splitlines() if not line.startswith(("slurmstepd", "srun"))]
    met = "met step 1 with sand in /tmp"
    assert lines.count(met) == 1, "what a step asks for and Slurm says to it is its own, in another's container too"
    assert [line.partition("[")[0] for line in lines if line != met] == ["mnt:"] * 3
    assert "--container-readonly: the container runs already, and was started without it" in log()
    assert len(set(lines)) == 2, "a step was elsewhere, although one that joined outlived the first"


def test_a_container_is_saved_and_is_an_image_again(srun):
    saved = "/workspace/saved.sqsh"
    assert srun("echo 'all ashore' >sign", "--container-save=saved.sqsh", "--chdir=/workspace").ok
    assert srun("cat sign; echo $CARGO", image=saved).check().stdout == "all ashore\nbricks\n"


def test_a_batch_script_runs_in_a_container(port_of_call, ship):
    script = port_of_call.workspace() / "batch.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --container-image={ship}\ncat sign\n")
    job_id = port_of_call.slurm.submit("--output=runs/%j.log", "batch.sh")
    log = (port_of_call.workspace() / "runs" / f"{job_id}.log").read_text
    port_of_call.slurm.wait_completed(job_id, 120, log=log)
    assert log() == "all aboard\n"


WRONG = {
    "no such image": (["--container-image=registry:5000/ghost"], "ghost"),
    "no such file": (["--container-image=/workspace/ghost.sqsh"], "/workspace/ghost.sqsh"),
    "no such mount": (["--container-mounts=/ghost:/ghost"], "/ghost"),
    "no such folder": (["--container-workdir=/ghost"], "/ghost"),
    "no such place": (["--container-save=/ghost/saved.sqsh"], "/ghost/saved.sqsh"),
    "no such flag": (["--container-mounts=/tmp:/tmp:sideways"], "sideways"),
}


@pytest.mark.newest
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_said_in_one_line_and_the_node_stays(port_of_call, ship, mistake):
    words, named = WRONG[mistake]
    image = [] if mistake.endswith(("image", "file")) else [f"--container-image={ship}"]
    ran = port_of_call.slurm.runner(["srun", "--nodes=1", "--ntasks=2", *image, *words, "hostname"])
    assert ran.returncode == 1
    assert not ran.stdout
    told = [line for line in ran.stderr.splitlines() if "container" in line]
    assert len(told) == 1, ran.stderr
    assert named in told[0]
    jobs.wait_until_idle(port_of_call)
    assert srun_plainly(port_of_call) == ["node-1", "node-2"]


def srun_plainly(cluster) -> list[str]:
    return sorted(cluster.slurm.runner(["srun", "--nodes=2", "hostname"]).check().stdout.split())


def test_nothing_is_left_of_a_step_that_was_killed(port_of_call, ship):
    """By kill -9 of its slurmstepd, which can tidy nothing up."""
    before = mounts_of_node(port_of_call)
    step = f"srun --container-image={ship} --container-name=lost sleep 600"
    job_id = port_of_call.slurm.submit("--output=runs/%j.log", "--nodelist=node-1", "--wrap", step)
    wait_until(lambda: jobs.find_process(port_of_call, "sleep 600"), what="the step runs in its container", timeout=120)
    engine.execute(port_of_call, "node-1", ["pkill", "-KILL", "-f", rf"slurmstepd: \[{job_id}\.0\]"]).check()
    port_of_call.slurm.cancel(job_id)
    port_of_call.slurm.wait(job_id, 120)
    jobs.wait_until_idle(port_of_call)
    assert engine.execute(port_of_call, "node-1", ["ps", "-o", "args=", "-u", "alice"]).stdout == ""
    assert mounts_of_node(port_of_call) == before
    again = port_of_call.slurm.runner(["srun", "--nodelist=node-1", "--container-name=lost", "cat", "sign"])
    assert again.check().stdout == "all aboard\n"


def test_a_pull_that_hangs_ends_with_its_job(port_of_call):
    """Slurm sends no signal to a step without tasks; the registry here answers nothing, which takes 70 s alone.
    So the plugin asks squeue, which the user's variables could turn, and which lists the whole array of a last task."""
    # It sleeps for as long as it is needed, and ends by itself: nobody else would end it if the test fails.
    server = "import socket, time; s = socket.create_server(('', 7777)); time.sleep(120)"
    engine.execute(port_of_call, "node-1", ["python3", "-c", server], options=["--detach"]).check()
    listens = "until exec 3<>/dev/tcp/localhost/7777; do sleep 0.1; done"
    engine.execute(port_of_call, "node-1", ["bash", "-c", listens]).check()
    step = "test $SLURM_ARRAY_TASK_ID = 1 || srun --container-image=localhost:7777/ship true"
    where = ("--array=1-2", "--nodelist=node-1", "--export=ALL,SQUEUE_USERS=bob", "--output=/dev/null")
    job_id = port_of_call.slurm.submit(*where, "--wrap", step)
    pull = ".* image=localhost:7777/ship"
    wait_until(lambda: jobs.find_process(port_of_call, pull, "--older=6"), what="the pull goes on for 6 s", timeout=60)
    port_of_call.slurm.cancel(job_id)
    jobs.wait_until_idle(port_of_call, timeout=40)


def mounts_of_node(cluster) -> str:
    return engine.execute(cluster, "node-1", ["cat", "/proc/1/mountinfo"]).check().stdout


def test_a_full_disk_of_a_node_is_said_and_nothing_is_taken_for_an_image(port_of_call, ship):
    """The disk is the node's /dev, 64 MB of memory, filled but for 1 MB."""
    fill = (
        "mkdir -m 700 /dev/crowded /dev/crowded/store /dev/crowded/data && chown -R alice /dev/crowded && "
        "fallocate -l $(($(df --output=avail -B1 /dev | tail -1) - 1000000)) /dev/crowded/fill"
    )
    alice = port_of_call.as_user("alice")
    alice(["container-image", "save", ship, "/workspace/full.sqsh"]).check()
    step = ["srun", "--quiet", "--nodelist=node-1"]
    data = "/dev/crowded/data"
    create = f"ENROOT_DATA_PATH={data} enroot create --name full /workspace/full.sqsh; echo $?; ls -A {data}"
    try:
        engine.execute(port_of_call, "node-1", ["sh", "-c", fill]).check()
        pulled = alice(["env", "CONTAINER_IMAGES=/dev/crowded/store", *step, f"--container-image={ship}", "true"])
        left = alice([*step, "ls", "/dev/crowded/store/images", "/dev/crowded/store/l", "/dev/crowded/store/tmp"])
        created = alice([*step, "sh", "-c", create])
    finally:
        engine.execute(port_of_call, "node-1", ["rm", "-rf", "/dev/crowded"])
    told = [line for line in pulled.stderr.splitlines() if "container" in line]
    assert (pulled.returncode, len(told)) == (1, 1), pulled.stderr
    assert told[0].endswith("No space left on device in /dev/crowded/store")
    assert [line for line in left.check().stdout.splitlines() if line and not line.endswith(":")] == []
    assert created.stdout == "1\n"
    assert created.stderr.splitlines()[-1] == "[ERROR] /workspace/full.sqsh: unsquashfs: No space left on device"
    jobs.wait_until_idle(port_of_call)


def test_steps_of_two_users_that_start_at_once_pull_an_image_once_for_each_user(port_of_call):
    """Eight steps each, on two nodes."""
    name = f"localhost:{engine.port(port_of_call, 'registry', 5000)}/fleet"
    job_images.make(port_of_call, name, job_images.SHIP, job_images.OF_SHIP)
    engine.docker("push", "--quiet", name, timeout=120)
    engine.docker("rmi", name)
    step = f"srun --quiet --overlap --mem=32M --container-image={name} cat sign &"
    at_once = ["salloc", "--quiet", "--nodes=2", "--mem=300M", "sh", "-c", f"{step * 8} wait"]
    with ThreadPoolExecutor() as side_by_side:
        for ran in side_by_side.map(lambda user: port_of_call.as_user(user)(at_once), ("alice", "bob")):
            assert ran.stdout.splitlines() == ["all aboard"] * 16, ran.stderr
    requests = engine.docker("logs", engine.container(port_of_call, "registry"))
    blobs = Counter(re.findall(r'"GET /v2/fleet/blobs/(\S+) ', requests))
    assert list(blobs.values()) == [2, 2], "of the image's configuration and of its layer"


def test_images_are_their_users_alone(port_of_call, srun):
    assert srun("true").ok
    place = "/var/lib/container-images"
    listed = engine.execute(port_of_call, "login", ["stat", "--format=%U %a", f"{place}/alice", f"{place}/bob"])
    assert listed.check().stdout.splitlines() == ["alice 700", "bob 700"]
    for words in (["ls", f"{place}/alice"], ["touch", f"{place}/x"]):
        assert "Permission denied" in engine.execute(port_of_call, "node-1", words, user="bob").stderr


def test_nodes_have_no_right_more_than_elsewhere_but_calls_of_the_kernel(port_of_call):
    """The capabilities are those that test_containers.py names; of the kernel's calls the wide ones stay refused."""
    status = engine.execute(port_of_call, "node-1", ["cat", "/proc/1/status"]).check().stdout
    lines = dict(line.split(":\t", 1) for line in status.splitlines())
    bits = {bit for bit in range(64) if int(lines["CapBnd"], 16) >> bit & 1}
    assert bits == {0, 1, 3, 5, 6, 7, 18, 19, 29}
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")
    assert engine.inspect(port_of_call, "node-1")["HostConfig"]["Privileged"] is False
    numbers = {"x86_64": (321, 425, 250, 298, 323), "aarch64": (280, 425, 219, 241, 282)}
    calls = (
        f"import ctypes, errno, os; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for number in {numbers!r}[os.uname().machine]:\n"
        "    assert libc.syscall(number, -1, 0, 0, 0, 0) == -1\n"
        "    print(errno.errorcode[ctypes.get_errno()])\n"
    )
    for user in ("alice", "root"):
        found = engine.execute(port_of_call, "node-1", ["python3", "-c", calls], user=user).check().stdout.split()
        assert dict(zip(REFUSED_CALLS, found, strict=True)) == dict.fromkeys(REFUSED_CALLS, "EPERM")


def test_the_registry_is_nobody_special(port_of_call):
    status = run(
        ["docker", "exec", engine.container(port_of_call, "registry"), "cat", "/proc/1/status"], timeout=30
    ).check()
    lines = dict(line.split(":\t", 1) for line in status.stdout.splitlines())
    assert lines["Uid"].split()[0] == "65534"
    assert int(lines["CapBnd"], 16) == 0
    made = engine.inspect(port_of_call, "registry")
    assert made["HostConfig"]["ReadonlyRootfs"] is True
    [bound] = made["HostConfig"]["PortBindings"]["5000/tcp"]
    assert bound["HostIp"] == "127.0.0.1"


IN_CONTAINERS = """#!/bin/sh
#SBATCH --array=1-2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=runs/%A_%a.log
exec srun --container-image={ship} sh -c '
trap "echo told to end; exit 1" TERM
trap "echo told; exit 42" USR1
echo "task $SLURM_ARRAY_TASK_ID, start ${{SLURM_RESTART_COUNT:-0}}, $(cat sign)"
while :; do sleep 0.2; done'
"""


def test_an_array_in_containers_is_requeued_hears_signals_and_ends_at_its_time_limit(port_of_call, ship):
    slurm = port_of_call.slurm
    job = slurm.sbatch(IN_CONTAINERS.format(ship=ship))
    first, second = (BatchJob(slurm, f"{job.id}_{task}") for task in (1, 2))
    for task, each in enumerate((first, second), start=1):
        each.wait_for_output(f"task {task}, start 0, all aboard")
    slurm.runner(["scontrol", "update", f"JobId={second.id}", "TimeLimit=1"]).check()
    slurm.runner(["scontrol", "requeue", first.id]).check()
    first.wait_for_output("task 1, start 1, all aboard")
    slurm.runner(["scancel", "--signal=USR1", first.id]).check()
    ended = first.wait_until_over()
    assert (ended.state, ended.exit_code) == ("FAILED", "42:0")
    assert "told\n" in first.stdout
    assert second.wait_until_over().state == "TIMEOUT"
    assert "told to end\n" in second.stdout
