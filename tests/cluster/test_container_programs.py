"""Other ways into a container than srun's own options: enroot, OCI bundles and Apptainer. On a cluster of its own."""

from collections import Counter

import pytest

from harness import engine, jobs
from slurmbed import BatchJob
from slurmbed.wait import wait_until

NAMED = """#!/bin/sh
run="srun --overlap --ntasks=1 --mem=64M --container-name=named"
$run --container-image={ship} sh -c 'echo met >/new'
$run sh -c 'until test -e /tmp/last; do sleep 0.2; done' &
until pid=$(enroot list -f | awk '$1 == "pyxis_named" {{print $2}}'); test "$pid"; do sleep 0.2; done
enroot exec "$pid" sh -c 'cat /new; touch /tmp/last'
wait
enroot list | grep named && enroot remove -f pyxis_named
enroot list | grep named
"""


def test_a_kept_container_has_the_name_for_enroot_that_pyxis_gives_it(port_of_call, ship):
    job = port_of_call.slurm.sbatch(NAMED.format(ship=ship), "--nodes=1", "--time=1")
    job.wait_until_over()
    assert job.stdout.splitlines() == ["met", "pyxis_named"]


def test_enroot_in_the_chain_of_launch_scripts(port_of_call, ship):
    """Each node makes its container and starts torchrun in it; the image's says how it was called."""
    alice = port_of_call.as_user("alice")
    imported = alice(["enroot", "import", "--output", "/home/alice/ship.sqsh", "docker://" + ship.replace("/", "#", 1)])
    assert imported.check().stderr.splitlines()[-1] == "[INFO] Creating squashfs filesystem..."
    options = ["--mem=200M", "--cpus-per-task=1", "--gpus-per-node=0", "--export=ALL,IMAGE=/home/alice/ship.sqsh"]
    chain = ["launchers/chain/run_script.sh", "train.py", "--steps=2"]
    job = alice(["sbatch", "--parsable", "--wait", *options, *chain]).check().stdout.strip()
    logs = port_of_call.workspace() / "log" / job
    for number in (0, 1):
        told = logs.joinpath(f"node-{number + 1}.out").read_text()
        assert f"all aboard on node-{number + 1}: --nnodes=2 --node-rank={number} " in told
        assert told.rstrip().endswith(" train.py --steps=2")
    left = alice(["srun", "--nodes=2", "ls", "/tmp"]).check().stdout
    assert "enroot" not in left


@pytest.fixture(scope="module")
def bundle(port_of_call, ship):
    """Run a step in an OCI bundle of the image ship as alice; what came of it."""
    alice = port_of_call.as_user("alice")
    alice(["container-image", "bundle", ship, "/workspace/bundle"]).check()
    return lambda script, *words: alice(
        ["srun", "--quiet", *words, "--container=/workspace/bundle", "/bin/sh", "-c", script]
    )


def test_slurms_own_srun_runs_an_oci_bundle_of_an_image(bundle):
    script = 'echo "$(cat /harbour/sign) $(hostname) $CARGO"; ls /etc/debian_version; exit 42'
    ran = bundle(script, "--nodes=2")
    assert sorted(ran.stdout.splitlines()) == ["all aboard node-1 bricks", "all aboard node-2 bricks"]
    assert "No such file" in ran.stderr, "the node's own files are not there"
    assert ran.returncode == 42


@pytest.mark.parametrize(("signal", "status"), [("SEGV", 139), ("TERM", 143)])
def test_how_a_program_in_a_bundle_ends_is_how_the_step_ends(bundle, signal, status):
    assert bundle(f"kill -{signal} $$").returncode == status


def test_nothing_is_left_of_a_step_in_a_bundle_that_is_cancelled(port_of_call, bundle):
    step = "srun --container=/workspace/bundle /bin/sh -c 'sleep 603; echo went on'"
    job_id = port_of_call.slurm.submit("--output=runs/%j.log", "--nodelist=node-1", "--wrap", step)
    wait_until(lambda: jobs.find_process(port_of_call, "sleep 603"), what="the step runs in its bundle", timeout=60)
    port_of_call.slurm.cancel(job_id)
    jobs.wait_until_idle(port_of_call)
    assert BatchJob(port_of_call.slurm, job_id).wait_until_over().state == "CANCELLED"
    assert engine.execute(port_of_call, "node-1", ["ps", "-o", "args=", "-u", "alice"]).stdout == ""
    assert engine.execute(port_of_call, "node-1", ["sh", "-c", "ls /tmp/crun.*"]).check().stdout == ""


@pytest.mark.newest
def test_apptainer_builds_an_image_and_runs_it_on_two_nodes(port_of_call, ship):
    if not engine.execute(port_of_call, "login", ["which", "apptainer"]).ok:
        pytest.skip("Debian has Apptainer where it has Slurm 26.05: make test ONLY=newest")
    definition = "Bootstrap: docker\nFrom: registry:5000/ship:1\n%post\n  echo ready >/harbour/sails\n"
    port_of_call.workspace().joinpath("ship.def").write_text(definition)
    runner = port_of_call.slurm.runner
    runner(["apptainer", "build", "--no-https", "ship.sif", "ship.def"]).check()
    shown = "cat /harbour/sign /harbour/sails; echo $CARGO $(hostname); ls /etc/debian_version"
    ran = runner(["srun", "--nodes=2", "apptainer", "exec", "ship.sif", "sh", "-c", shown])
    assert Counter(ran.stdout.splitlines()) == {"all aboard": 2, "ready": 2, "bricks node-1": 1, "bricks node-2": 1}
    assert ran.stderr.count("No such file") == 2, "the nodes' own files are not there"
