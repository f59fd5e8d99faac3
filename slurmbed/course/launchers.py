"""`make launchers`: start the same two programs by every launcher of workspace/launchers, and prove where ranks ran."""

import json
import re
import shlex
import time
from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import data, runs
from slurmbed.course.follow import require_exclusive_workspace
from slurmbed.course.runs import Run
from slurmbed.errors import JobFailed, PlacementError, SlurmbedError, UsageError
from slurmbed.process import last_lines, run
from slurmbed.project import command, option
from slurmbed.slurm.placement import Placed, block_layout, parse_ranks, placement

RANKS_TO_TRAIN = 4  # on all nodes together; the sum has one rank for each GPU
SAME = 1e-3  # largest difference of losses: other numbers of ranks, and NCCL, add in another order
LIMIT = 300  # seconds for one job; the scripts' own time limits are shorter
OWN_LIMIT = 1000  # seconds for a program that submits a job, waits for it, and cancels it when it takes too long
SUM = ("launchers/distributed_sum.py",)
TRAINING = (
    *("train.py", "--parallel", "ddp", "--steps", "5", "--eval-every", "5"),
    *("--layers", "2", "--sample-length", "1", "--threads", "1", "--timeout", "120"),
)


@dataclass(frozen=True)
class Launcher:
    """A script of workspace/launchers.

    Attributes:
        by_slurm: whether each rank is a Slurm task; otherwise a task, or the batch script, starts several ranks.
        started_by, rank_0, survives: who starts the ranks, how rank 0 is found, and which failures the launcher
            survives; cells of the table.
    """

    name: str
    script: str
    by_slurm: bool
    started_by: str
    rank_0: str
    survives: str

    @property
    def one_node(self) -> bool:
        """Whether it can start ranks on one node only."""
        return self.name == "multiprocessing"

    def command(self, nodes: int, per_node: int, program: tuple[str, ...]) -> list[str]:
        """What a user types on the login node to start ``per_node`` ranks of a program on each of ``nodes`` nodes.

        Args:
            program: the program's file, from the workspace, and its arguments.
        """
        script = f"launchers/{self.script}"
        if self.name == "hydra":
            quoted = shlex.join(program).replace('"', '\\"')
            return ["python3", script, f"nodes={nodes}", f"ranks={per_node}", f'program="{quoted}"']
        if self.script.endswith(".py"):
            return ["python3", script, "--nodes", str(nodes), "--ranks", str(per_node), *program]
        # Where Slurm starts one launcher on each node, that task needs a CPU for each of its ranks.
        tasks = f"--ntasks-per-node={per_node}" if self.by_slurm else f"--cpus-per-task={per_node}"
        return ["sbatch", f"--nodes={nodes}", f"--gpus-per-node={per_node}", tasks, script, *program]

    def sum_program(self, torch: str) -> tuple[str, ...]:
        """The program that proves a launch; MPI's launchers prove MPI too, if torch was built with it.

        Args:
            torch: where torch comes from, as in TORCH=debian.
        """
        by_mpi = self.script in ("pmix.sbatch", "mpirun.sbatch") and torch == "debian"
        return (*SUM, "--backend", "mpi") if by_mpi else SUM


FIRST = "first node of the list"
STORE = "a store on the first node"
# name, script, whether each rank is a Slurm task, who starts the ranks, how rank 0 is found, what it survives
TABLE = (
    ("srun", "srun.sbatch", True, "Slurm", FIRST, "nothing"),
    ("pmix", "pmix.sbatch", True, "Slurm", "by PMIx; with gloo the first node", "nothing"),
    ("fabric", "fabric.sbatch", True, "Slurm", FIRST, "nothing"),
    ("deepspeed-srun", "deepspeed-srun.sbatch", True, "Slurm", FIRST, "nothing"),
    ("deepspeed-ssh", "deepspeed-ssh.sbatch", False, "DeepSpeed, over ssh", "first line of the hostfile", "nothing"),
    ("torchrun", "torchrun.sbatch", False, "a torchrun on each node", STORE, "nothing"),
    (
        *("torchrun-elastic", "torchrun-elastic.sbatch", False, "a torchrun on each node", STORE),
        "a rank, a torchrun, any node but the first",
    ),
    ("accelerate", "accelerate.sbatch", False, "an accelerate on each node", "machine rank 0", "nothing"),
    ("mpirun", "mpirun.sbatch", False, "an MPI daemon on each node", "by MPI; with gloo the first node", "nothing"),
    ("ray", "ray.sbatch", False, "a Ray on each node", "first task on the first node", "nothing"),
    ("multiprocessing", "multiprocessing.sbatch", False, "Python", "127.0.0.1: one node only", "nothing"),
    ("submitit", "submitit_job.py", True, "Slurm", FIRST, "preemption, with a checkpoint()"),
    ("hydra", "hydra_submitit.py", True, "Slurm, a job for each configuration", FIRST, "nothing"),
)
LAUNCHERS = {row[0]: Launcher(*row) for row in TABLE}


@dataclass(frozen=True)
class Proof:
    """A launcher's job whose ranks ran where Slurm says.

    Attributes:
        seconds: from submission to the first collective.
    """

    placed: list[Placed]
    log: str
    seconds: float


def start(cluster: Cluster, command: list[str]) -> tuple[str, str]:
    """Run a command of ``Launcher.command`` to the job's end; returns the job's id and its log.

    Raises:
        JobFailed: with the last log lines.
        WaitTimeout: the job took too long. Then, and after Ctrl-C, it is cancelled.
    """
    if command[0] == "sbatch":
        since = runs.now()
        job_id = cluster.slurm.submit("--output=runs/%j.log", *command[1:])
        job_run = Run(cluster.workspace(), job_id, since)
        try:
            cluster.slurm.wait_completed(job_id, LIMIT, log=job_run.log)
        except JobFailed:
            raise
        except BaseException:  # took too long, or was interrupted
            cluster.slurm.cancel(job_id)
            raise
        return job_id, job_run.log()
    done = run(cluster.exec_argv(command), timeout=OWN_LIMIT)
    found = re.search(r"^submitted job (\d+)", done.stdout, re.MULTILINE)
    if not done.ok or not found:
        raise JobFailed(f"{shlex.join(command)}: exit status {done.returncode}", "", last_lines(done.output))
    return found[1], done.stdout


def prove(cluster: Cluster, launcher: Launcher, nodes: int, per_node: int) -> Proof:
    """Have the launcher start the program that sums over all ranks, ``per_node`` of them on each of ``nodes`` nodes.

    Raises:
        JobFailed: the job failed, or the sum is wrong.
        PlacementError: a rank is missing, or ran on another node than Slurm says.
    """
    submitted = time.time()
    program = launcher.sum_program(cluster.choices().torch)
    job_id, placed, log = run_program(cluster, launcher, nodes, per_node, program)
    sums = re.findall(r'{"record": "sum".*', log)
    if len(sums) != 1 or log.count("all right") != 1:
        raise JobFailed(f"job {job_id} completed without its sum", "", last_lines(log))
    return Proof(placed, log, json.loads(sums[0])["first_collective"] - submitted)


def run_program(
    cluster: Cluster, launcher: Launcher, nodes: int, per_node: int, program: tuple[str, ...]
) -> tuple[str, list[Placed], str]:
    """As ``start``, and prove where the ranks ran; returns the job's id, its placed ranks and its log.

    Raises also PlacementError.
    """
    job_id, log = start(cluster, launcher.command(nodes, per_node, program))
    ranks = parse_ranks(log)
    allocated = cluster.slurm.hostnames(cluster.slurm.job(job_id).nodelist)
    if launcher.by_slurm:
        layout = cluster.slurm.accounted_layout(job_id)
    else:
        layout = block_layout(dict(enumerate(allocated)), ranks)
    placed = placement(ranks, layout, job_id)
    counts = Counter(item.slurm_node for item in placed)
    if counts != dict.fromkeys(allocated, per_node) or len(allocated) != nodes:
        raise PlacementError(f"{nodes} nodes with {per_node} ranks on each were asked for; there are {dict(counts)}")
    return job_id, placed, log


def training_program(text: data.TextRecord, ranks: int) -> tuple[str, ...]:
    """train.py for a few steps on the prepared text, with a batch that ``ranks`` ranks, or a divisor of it, share."""
    return (*TRAINING, "--batch-size", str(6 * ranks), "--text", text.path)


def train(cluster: Cluster, launcher: Launcher, nodes: int, per_node: int, program: tuple[str, ...]) -> float:
    """Have the launcher start ``training_program``'s result; returns its validation loss. Raises as ``prove``."""
    since = runs.now()
    job_id, _, _ = run_program(cluster, launcher, nodes, per_node, program)
    return Run(cluster.workspace(), job_id, since).summary()["val_loss"]


def require(names: str) -> list[Launcher]:
    """The launchers ``names``, separated by commas; all if empty. UsageError if one is unknown."""
    asked = names.split(",") if names else list(LAUNCHERS)
    for name in asked:
        if name not in LAUNCHERS:
            raise UsageError(
                f"{option('only', names)}: there is no launcher {name!r}", f"choose from {', '.join(LAUNCHERS)}"
            )
    return [LAUNCHERS[name] for name in asked]


def nodes_and_gpus(cluster: Cluster) -> tuple[int, int]:
    """The number of nodes, and the number of GPUs, and so of ranks, of each.

    Raises:
        UsageError: the nodes have no GPUs, or fewer CPUs than GPUs.
    """
    again = f"{command('clean', name=cluster.name)}, then: {command('up', name=cluster.name, nodes=2, gpus=8)}"
    nodes = cluster.slurm.nodes()
    gpus = min(node.gpus for node in nodes)
    if not gpus:
        raise UsageError("not all nodes have GPUs, and launchers start a rank for each GPU", again)
    if min(node.cpus for node in nodes) < gpus:
        raise UsageError(f"nodes have fewer CPUs than GPUs ({gpus}), and launchers need one for each GPU", again)
    return len(nodes), gpus


def run_all(cluster: Cluster, console: Console, names: str) -> None:
    """Try the launchers ``names`` (all if empty), one after another, and print a table of all.

    Each starts the sum, a rank for each GPU, then some steps of training.

    Raises:
        JobFailed: with the names of those that failed, after all have run; or their losses differ.
    """
    chosen, (nodes, gpus) = require(names), nodes_and_gpus(cluster)
    require_exclusive_workspace(cluster)
    few = nodes * min(gpus, max(1, RANKS_TO_TRAIN // nodes))
    fit = next(ranks for ranks in range(min(few, gpus), 0, -1) if few % ranks == 0)  # on one node
    program = training_program(data.text(cluster), few)
    rows, failed, losses = [], [], set()
    for each in chosen:
        size = 1 if each.one_node else nodes
        try:
            proof = prove(cluster, each, size, gpus)
            loss = train(cluster, each, size, fit if each.one_node else few // nodes, program)
        except SlurmbedError as error:
            console.print(f"{each.name}: {error}", style="red", markup=False, highlight=False)
            failed.append(each.name)
            continue
        where = f"{size} x {gpus} ranks, placement proved"
        console.print(f"{each.name}: {where}, {proof.seconds:.1f} s to the first sum, loss {loss:.6f}", highlight=False)
        losses.add(loss)
        rows.append([each.name, each.started_by, each.rank_0, f"{proof.seconds:.0f}", each.survives])
    show(console, rows)
    if failed:
        raise JobFailed(f"{len(failed)} of {len(chosen)} launchers failed: {', '.join(failed)}", "see above")
    if max(losses, default=0) - min(losses, default=0) > SAME:
        raise JobFailed("the losses above differ, and they should be the same under every launcher")


def show(console: Console, rows: list[list[str]]) -> None:
    table = Table(title="launchers")
    table.add_column("launcher", no_wrap=True)
    table.add_column("who starts the ranks")
    table.add_column("how rank 0 is found")
    table.add_column("s to first sum", justify="right", width=8)
    table.add_column("what it survives")
    for row in rows:
        table.add_row(*row)
    console.print(table)
