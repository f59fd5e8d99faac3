"""Training in containers: the losses of the bare run, ranks of each world, the lesson. On a cluster of its own.

The image is made here: Debian's python3 and torch, of the node image.
"""

import json
from pathlib import Path

import pytest

from harness import engine, internals, jobs
from harness.clusters import TEXT
from harness.commands import make
from harness.lessons import Command, keeps_its_promises, page


def test_training_in_containers_has_the_losses_of_the_bare_one(port_of_call, torch_file):
    bare = port_of_call.slurm.run("jobs/ddp.sbatch", "--steps=2", "--text", TEXT)
    text = f"TEXT={port_of_call.workspace() / TEXT}"
    done = make("train", f"NAME={port_of_call.name}", "PARALLEL=ddp", "STEPS=2", text, f"CONTAINER={torch_file}")
    assert done.returncode == 0, done.stdout + done.stderr
    places = [line.split() for line in done.stdout.partition("the log and Slurm agree")[2].splitlines()]
    ranks = [" ".join(row[1:6:2]) for row in places if row[1:2] and row[1] in "01"]
    assert ranks == ["0 node-1 node-1", "1 node-2 node-2"]
    report = Path(done.stdout.partition("report: ")[2].strip())
    assert f"CONTAINER={torch_file}" in report.read_text()
    log = report.parent.with_suffix(".log").read_text()
    assert log.count("python3 of the image") == 2
    assert "python3 of the image" not in bare.stdout
    first, second = losses(port_of_call, bare.id), losses(port_of_call, report.parent.name)
    assert first == second
    assert None not in first[2]


def losses(cluster, job_id: str) -> dict[int, list[float]]:
    """By step, those of training and validation, in all their digits."""
    lines = map(json.loads, (cluster.workspace() / "runs" / job_id / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: [line["train_loss"], line["val_loss"]] for line in lines}


def test_an_image_of_docker_goes_to_the_registry_and_a_wrong_one_is_said(port_of_call, ship):
    """It has no python3: the training fails, in the container."""
    archive = str(port_of_call.workspace() / "ship.tar")
    name = f"{port_of_call.name}-ship:2"
    loaded = engine.docker("load", "--quiet", "--input", archive).split()[-1]
    engine.docker("tag", loaded, name)
    try:
        text = f"TEXT={port_of_call.workspace() / TEXT}"
        done = make("train", f"NAME={port_of_call.name}", text, f"CONTAINER={name}")
        assert engine.docker("images", "--quiet", f"localhost:*/{name}") == "", "only the user's names stay"
    finally:
        engine.docker("rmi", loaded, name)
    assert done.returncode != 0
    pushed = f"{ship.partition('/')[0]}/{name}"
    assert f"IMAGE={pushed}" in done.stdout
    assert "execve(): python3: No such file or directory" in done.stderr
    assert port_of_call.as_user("bob")(["srun", f"--container-image={pushed}", "cat", "sign"]).check().stdout


@pytest.mark.parametrize(
    ("script", "program", "of_image"),
    [("pmix", "mpi_sum", "python3 of the image"), ("torchrun", "distributed_sum", "torchrun of the image")],
)
def test_ranks_in_containers_on_two_nodes_are_one_world(port_of_call, torch_file, script, program, of_image):
    """By srun and PMIx, and by a torchrun in each container over gloo."""
    if script == "pmix":
        jobs.require_pmix(port_of_call)
    options = ["--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0", f"--export=ALL,IMAGE={torch_file}"]
    log = port_of_call.slurm.run(*options, f"launchers/{script}.sbatch", f"launchers/{program}.py").stdout
    assert jobs.record(log, "sum")["nodes"] == {"node-1": [0], "node-2": [1]}
    assert "1 sum(s) over 2 rank(s): all right" in log
    assert log.count(of_image) == 2


def test_the_lesson_on_containers(port_of_call, torch_file):
    typed = [
        Command(each.typed.replace("registry:5000/torch", torch_file), each.may_fail, each.promised)
        for each in page("containers").commands
    ]
    keeps_its_promises(port_of_call, typed)


@pytest.mark.matrix  # it pushes half a gigabyte, and compresses it once more
def test_the_chain_of_enroot_trains_in_the_image_that_make_train_pushed(port_of_call, torch):
    text = f"TEXT={port_of_call.workspace() / TEXT}"
    done = make("train", f"NAME={port_of_call.name}", "PARALLEL=ddp", "STEPS=2", text, f"CONTAINER={torch}")
    assert done.returncode == 0, done.stdout + done.stderr
    trained = Path(done.stdout.partition("report: ")[2].strip()).parent.name
    registry = engine.port(port_of_call, "registry", 5000)
    alice = port_of_call.as_user("alice")
    alice(["enroot", "import", "--output", "torch.sqsh", f"docker://localhost:{registry}#{torch}"]).check()
    options = ["--mem=800M", "--cpus-per-task=1", "--gpus-per-node=0", "--export=ALL,IMAGE=/workspace/torch.sqsh"]
    program = ["train.py", "--parallel=ddp", "--steps=2", "--text", TEXT]
    job = alice(["sbatch", "--parsable", "--wait", *options, "launchers/chain/run_script.sh", *program])
    job_id = job.check().stdout.strip()
    logs = port_of_call.workspace() / "log" / job_id
    for number in (0, 1):
        told = logs.joinpath(f"node-{number + 1}.out").read_text()
        assert f"node-{number + 1} is node {number} of 2, rank 0 is on node-1:" in told
        assert [(each.rank, each.node) for each in internals.parse_ranks(told)] == [(number, f"node-{number + 1}")]
    assert losses(port_of_call, job_id) == losses(port_of_call, trained)
