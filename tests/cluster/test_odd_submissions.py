"""What no job may do, whatever its user types: end a slurmd, or take a node out of service."""

import json

import pytest

from harness import engine
from harness.internals import wait_ready
from slurmbed import BatchJob, Slurm
from slurmbed.wait import Pending, wait_until

# One submission a line, typed by alice in a folder of her own, in bash. Some are refused, some fail, some run.
EXPORTS = r"""
sbatch --export=ALL --wrap true
sbatch --export=NONE --wrap true
sbatch --export=NIL --wrap true
sbatch --export=FOO --wrap true
sbatch --export=FOO=1 --wrap true
sbatch --export=ALL,FOO=1 --wrap true
sbatch --export=NONE,FOO=1 --wrap true
sbatch --export=FOO=1,BAR='two words',BAZ= --wrap true
sbatch --export= --wrap true
sbatch --export== --wrap true
sbatch --export=,, --wrap true
sbatch --export=$'FOO=\xff\xfe' --wrap true
sbatch --export=$'FOO=a\nb' --wrap true
sbatch --export=HOME=/nowhere,PATH=/nowhere --wrap true
sbatch --export=ALL,LD_PRELOAD=/nowhere.so --wrap true
sbatch --export=ALL,USER=root,LOGNAME=root,SLURM_CONF=/nowhere --wrap true
sbatch --get-user-env --wrap true
sbatch --get-user-env=5 --wrap true
sbatch --get-user-env=10L --wrap true
sbatch --get-user-env=0S --wrap true
sbatch --export-file=/dev/null --wrap true
sbatch --export-file=/nowhere --wrap true
sbatch --export-file=<(printf 'FOO=1\0BAR=\xff\0BAZ\0') --wrap true
SBATCH_EXPORT=NONE sbatch --wrap true
SLURM_GET_USER_ENV=1 sbatch --wrap true
"""
ENVIRONMENTS = r"""
BIG=$(head -c 120000 /dev/zero | tr '\0' x) sbatch --wrap true
BIG=$(head -c 120000 /dev/zero | tr '\0' x) sbatch --export=BIG --wrap true
env $(seq -f 'V%g=value' 3000) sbatch --wrap true
env $(seq -f 'V%g=value' 3000) sbatch --export=ALL,FOO=1 --wrap true
env $'ODD NAME=1' $'\xff=2' '=3' sbatch --wrap true
env -i /usr/bin/sbatch --wrap true
BASH_ENV=/nowhere ENV=/nowhere sbatch --wrap true
(ulimit -n 16; sbatch --propagate=ALL --wrap true)
(ulimit -s 1024; ulimit -t 1; sbatch --propagate=ALL --wrap true)
"""
NAMES = r"""
sbatch --job-name=$'\xff\xfe' --wrap true
sbatch --job-name=$'two\nlines' --comment=$'\t"\\\x01' --wrap true
sbatch --job-name="$(head -c 5000 /dev/zero | tr '\0' n)" --wrap true
sbatch --job-name='../../../$(reboot)' --output=%x.log --wrap true
sbatch --job-name= --wrap true
sbatch --output=$'\xff.log' --wrap true
sbatch --output=/nowhere/%j.log --wrap true
sbatch --output=/root/%j.log --wrap true
sbatch --output=/dev/full --wrap 'echo full'
sbatch --output="$(head -c 300 /dev/zero | tr '\0' o)" --wrap true
sbatch --input=/nowhere --wrap true
sbatch --chdir=/nowhere --wrap true
sbatch --chdir=/root --wrap true
"""
SCRIPTS = r"""
printf '#!/nowhere/sh\n' | sbatch
printf '#!/bin/sh\r\ntrue\r\n' | sbatch
printf '#!/bin/sh\n#SBATCH --export=NONE\n#SBATCH --job-name=\xff\ntrue\n' | sbatch
printf '#!/bin/sh\n\0\0\0' | sbatch
sbatch </dev/null
sbatch --wrap $'echo \xff\xfe'
sbatch --wrap 'kill -9 -1'
sbatch --wrap 'kill -9 $PPID; kill -9 1; killall -9 slurmd slurmstepd'
sbatch --wrap 'srun --export=NONE true; srun --export=ALL,FOO=1 true'
"""
REQUESTS = r"""
sbatch --time=0 --wrap true
sbatch --mem=0 --wrap true
sbatch --mem=1K --wrap true
sbatch --nodes=2 --exclusive --export=NONE --wrap 'srun true'
sbatch --array=0-2 --export=ALL,FOO=1 --wrap true
sbatch --uid=root --export=NONE --wrap true
sbatch --reboot --wrap true
sbatch --core-spec=1 --wrap true
sbatch --profile=all --acctg-freq=0 --wrap true
sbatch --container=/nowhere --wrap true
sbatch --dependency=afterok:4000000 --wrap true
sbatch --begin=now+2 --mail-type=ALL --mail-user=$'\xff' --wrap true
sbatch --cpu-freq=low --hint=nomultithread --mem-bind=local --wrap true
"""
STARTABLE = {"Resources", "Priority", "None", "BeginTime"}  # reasons to wait that pass by themselves


def typed(cluster, lines: str) -> str:
    """What bash printed when alice typed the lines; a line with an error does not stop the next."""
    script = f"mkdir -p ~/odd && cd ~/odd\n{lines.strip()}\nexit 0\n"
    return engine.execute(cluster, "login", ["bash", "-l"], user="alice", timeout=300, stdin=script).check().output


def state(cluster) -> dict:
    """What changes when a container starts again, or a node is taken out of service."""
    containers = {}
    for service in engine.states(cluster.name):
        made = engine.inspect(cluster, service)
        containers[service] = (made["State"]["StartedAt"], made["RestartCount"])
    nodes = json.loads(cluster.slurm.runner(["scontrol", "--json", "show", "nodes"]).check().stdout)["nodes"]
    daemons = {node["name"]: node["slurmd_start_time"]["number"] for node in nodes}
    return {"containers": containers, "slurmd started": daemons, "reasons": [node["reason"] for node in nodes]}


def nothing_runs(cluster) -> None:
    listed = cluster.slurm.runner(["squeue", "--noheader", "--user=alice", "--format=%i %T %r"]).check().stdout
    jobs = [line.split(maxsplit=2) for line in listed.splitlines()]
    if left := [" ".join(job) for job in jobs if job[1] != "PENDING" or job[2] in STARTABLE]:
        raise Pending(f"{len(left)} jobs, such as {left[0]}")


@pytest.mark.parametrize("lines", [EXPORTS, ENVIRONMENTS, NAMES, SCRIPTS, REQUESTS])
def test_no_submission_harms_a_node(slurm_cluster, slurm, lines):
    wait_ready(slurm_cluster, 2)  # a slurmctld that another test restarted knows no slurmd at first
    before = state(slurm_cluster)
    said = typed(slurm_cluster, lines)
    try:
        assert said.count("Submitted batch job") > len(lines.strip().splitlines()) // 3, said
        wait_until(lambda: nothing_runs(slurm_cluster), what="all jobs have run", timeout=180)
    finally:
        slurm.runner(["scancel", "--user=alice"]).check()
    wait_ready(slurm_cluster, 2)
    assert state(slurm_cluster) == before


WHAT_IT_SEES = "echo FOO=$FOO SENT=$SENT GREETING=$GREETING HOME=$HOME"
SEEN = {
    "--export=ALL": "FOO= SENT=yes GREETING= HOME=/home/bob",
    "--export=ALL,FOO=1": "FOO=1 SENT=yes GREETING=hello HOME=/home/bob",
    "--export=FOO=1": "FOO=1 SENT= GREETING=hello HOME=/home/bob",
    "--export=NONE": "FOO= SENT= GREETING=hello HOME=/home/bob",
    "--get-user-env": "FOO= SENT=yes GREETING=hello HOME=/home/bob",
    "--export=NIL": "FOO= SENT= GREETING= HOME=",
}


@pytest.mark.newest
def test_a_job_has_the_variables_that_it_asked_for(slurm_cluster):
    """As sbatch's manual says; GREETING is of the user's login shell, whose profile prints something too."""
    submit = [
        f"SENT=yes sbatch --parsable --output=/home/bob/seen-%j {option} --wrap '{WHAT_IT_SEES}'" for option in SEEN
    ]
    script = "\n".join(["cat >~/.bash_profile; cd /tmp", *submit])
    bob, options = slurm_cluster.as_user("bob"), ("--env=HOME=/home/bob",)
    try:
        profile = "echo noise; export GREETING=hello\n"
        words = ["bash", "-c", script]
        ids = engine.execute(
            slurm_cluster, "login", words, user="bob", options=options, timeout=120, stdin=profile
        ).check()
        found = {}
        for option, job_id in zip(SEEN, ids.stdout.split(), strict=True):
            Slurm(bob).wait_completed(job_id, 120)
            found[option] = bob(["cat", f"/home/bob/seen-{job_id}"]).check().stdout.strip()
        assert found == SEEN
    finally:
        bob(["sh", "-c", "rm -f /home/bob/.bash_profile /home/bob/seen-*"]).check()


def test_a_slurmd_that_read_its_configuration_again_is_as_before(slurm_cluster):
    """It is another process then, which was not started by the entrypoint."""
    engine.execute(slurm_cluster, "slurmctld", ["scontrol", "reconfigure"]).check()
    wait_ready(slurm_cluster, 2)
    wait_ready(slurm_cluster, 2)  # a slurmctld that another test restarted knows no slurmd at first
    before = state(slurm_cluster)
    typed(slurm_cluster, "sbatch --nodelist=node-1 --export=NONE --wait --wrap true")
    typed(slurm_cluster, "sbatch --nodelist=node-2 --export=ALL,FOO=1 --wait --wrap true")
    assert state(slurm_cluster) == before


def test_a_profile_that_hangs_holds_nobody_else_up(slurm_cluster, slurm):
    """Its own job waits for it, as on any cluster; other jobs start on that node meanwhile."""
    wait_ready(slurm_cluster, 2)  # a slurmctld that another test restarted knows no slurmd at first
    before, bob = state(slurm_cluster), Slurm(slurm_cluster.as_user("bob"))
    slurm_cluster.as_user("bob")(["sh", "-c", "echo 'sleep 600' >/home/bob/.bash_profile"]).check()
    try:
        job = BatchJob(
            bob, bob.submit("--nodelist=node-2", "--export=ALL,FOO=1", "--output=/dev/null", "--wrap", "true")
        )

        def hangs() -> None:
            if not engine.execute(slurm_cluster, "node-2", ["pgrep", "-u", "bob", "-x", "sleep"]).ok:
                raise Pending(job.state)

        wait_until(hangs, what="bob's profile runs", timeout=60)
        assert slurm.runner(["srun", "--nodes=2", "true"]).ok
        assert engine.execute(slurm_cluster, "node-2", ["pkill", "-u", "bob", "-x", "sleep"]).ok, "it hung no longer"
        job.wait()
    finally:
        slurm_cluster.as_user("bob")(["rm", "-f", "/home/bob/.bash_profile"]).check()
    assert state(slurm_cluster) == before


def test_a_slurmd_that_ends_is_started_again(slurm_cluster, slurm):
    """The restart policy of docker-compose.yml, for whatever else may end one."""
    started = state(slurm_cluster)["slurmd started"]["node-2"]
    engine.execute(slurm_cluster, "node-2", ["pkill", "-KILL", "-f", "^slurmd -D"]).check()

    def again() -> None:
        if (now := state(slurm_cluster)["slurmd started"]["node-2"]) <= started:
            raise Pending(f"slurmd of {now}")

    wait_until(again, what="node-2 has a new slurmd", timeout=90)
    wait_ready(slurm_cluster, 2)
    assert slurm.runner(["srun", "--nodelist=node-2", "hostname"]).check().stdout == "node-2\n"
