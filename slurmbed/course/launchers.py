"""`make launchers`: every launcher of workspace/launchers starts the same programs; where their ranks ran is proved."""

import json
import re
import shlex
import time
from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from slurmbed.cluster.cluster import USER, Cluster
from slurmbed.course import prepare, training
from slurmbed.errors import JobFailed, PlacementError, SlurmbedError, UsageError
from slurmbed.process import last_lines, run
from slurmbed.slurm.placement import Placed, block_layout, parse_ranks, placement

RANKS_TO_TRAIN = 4  # on all nodes together; the sum has one for each GPU
SAME = 1e-3  # by how much losses may differ: other numbers of ranks, or NCCL, sum in another order
LIMIT = 300  # seconds for one job; the scripts' own bounds are shorter
OWN_LIMIT = 1000  # seconds for a program that submits, waits, and cancels its job in time by itself
SUM = ("launchers/distributed_sum.py",)
TRAINING = (
    *("train.py", "--parallel", "ddp", "--steps", "5", "--eval-every", "5"),
    *("--layers", "2", "--sample-length", "1", "--threads", "1", "--timeout", "120"),
)


@dataclass(frozen=True)
class Launcher:
    """A script of workspace/launchers; ``by_slurm``: whether each rank is a task of Slurm's."""

    name: str
    script: str
    by_slurm: bool
    started_by: str
    rank_0: str
    survives: str

    @property
    def one_node(self) -> bool:
        return self.name == "multiprocessing"

    def words(self, nodes: int, per_node: int, program: tuple[str, ...]) -> list[str]:
        """What a user types to start ``per_node`` ranks of the program on each of ``nodes`` nodes."""
        script = f"launchers/{self.script}"
        if self.name == "hydra":
            one_word = shlex.join(program).replace('"', '\\"')
            return ["python3", script, f"nodes={nodes}", f"ranks={per_node}", f'program="{one_word}"']
        if self.script.endswith(".py"):
            return ["python3", script, "--nodes", str(nodes), "--ranks", str(per_node), *program]
        # A launcher of which Slurm starts one on each node needs a CPU for each of its ranks.
        tasks = f"--ntasks-per-node={per_node}" if self.by_slurm else f"--cpus-per-task={per_node}"
        return ["sbatch", f"--nodes={nodes}", f"--gpus-per-node={per_node}", tasks, script, *program]

    def sum_words(self, torch: str) -> tuple[str, ...]:
        """What proves a launch; MPI's launchers prove MPI, where the flavour of torch has it."""
        by_mpi = self.script in ("pmix.sbatch", "mpirun.sbatch") and torch == "debian"
        return (*SUM, "--backend", "mpi") if by_mpi else SUM


FIRST = "first node of the list"
STORE = "a store on the first node"
# name, script, whether each rank is a task of Slurm's, who starts the ranks, how rank 0 is found, what it survives
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
    """A job that a launcher started, its ranks where Slurm says; seconds from sbatch to the first collective."""

    placed: list[Placed]
    log: str
    seconds: float


def start(cluster: Cluster, words: list[str]) -> tuple[str, str]:
    """Run what ``Launcher.words`` gives to its end: the job's id, and its log.

    Raises:
        JobFailed: with the last log lines.
        WaitTimeout: it was not over in time. Then, and if interrupted, it is cancelled.
    """
    if words[0] == "sbatch":
        job_id = cluster.slurm.submit("--output=runs/%j.log", *words[1:])
        files = training.Run(cluster.workspace(), job_id)
        try:
            cluster.slurm.wait_completed(job_id, LIMIT, log=files.log)
        except JobFailed:
            raise
        except BaseException:  # too late, or interrupted
            cluster.slurm.cancel(job_id)
            raise
        return job_id, files.log()
    argv = cluster.compose.exec_argv("login", words, USER, ("--workdir", "/workspace"))
    done = run(argv, timeout=OWN_LIMIT)
    found = re.search(r"^submitted job (\d+)", done.stdout, re.MULTILINE)
    if not done.ok or not found:
        raise JobFailed(f"{' '.join(words)} ended with {done.returncode}", "", last_lines(done.output))
    return found[1], done.stdout


def prove(cluster: Cluster, launcher: Launcher, nodes: int, per_node: int) -> Proof:
    """The sum by the launcher: right, and every rank is there once and where Slurm says, as many on each node.

    Raises:
        JobFailed, PlacementError: which of it does not hold.
    """
    submitted = time.time()
    words = launcher.sum_words(cluster.choices().torch)
    job_id, placed, log = run_program(cluster, launcher, nodes, per_node, words)
    sums = re.findall(r'{"record": "sum".*', log)
    if len(sums) != 1 or log.count("all right") != 1:
        raise JobFailed(f"job {job_id} completed without its sum", "", last_lines(log))
    return Proof(placed, log, json.loads(sums[0])["first_collective"] - submitted)


def run_program(
    cluster: Cluster, launcher: Launcher, nodes: int, per_node: int, program: tuple[str, ...]
) -> tuple[str, list[Placed], str]:
    """As ``start``, with the ranks where Slurm says. Raises also PlacementError."""
    job_id, log = start(cluster, launcher.words(nodes, per_node, program))
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


def training_words(text: prepare.TextRecord, ranks: int) -> tuple[str, ...]:
    """A few steps of train.py on the prepared text, a batch that so many ranks can share, or a divisor of them."""
    return (*TRAINING, "--batch-size", str(6 * ranks), "--text", text.path)


def train(cluster: Cluster, launcher: Launcher, nodes: int, per_node: int, words: tuple[str, ...]) -> float:
    """The validation loss that train.py leaves under the launcher. Raises as ``prove``."""
    job_id, _, _ = run_program(cluster, launcher, nodes, per_node, words)
    return training.Run(cluster.workspace(), job_id).summary()["val_loss"]


def require(names: str) -> list[Launcher]:
    """The launchers of ``names``, with commas between; all if empty. UsageError if one is unknown."""
    asked = names.split(",") if names else list(LAUNCHERS)
    for name in asked:
        if name not in LAUNCHERS:
            raise UsageError(f"ONLY={names}: there is no launcher {name!r}", f"choose from {', '.join(LAUNCHERS)}")
    return [LAUNCHERS[name] for name in asked]


def shape(cluster: Cluster) -> tuple[int, int]:
    """How many nodes there are, and how many GPUs each has: so many ranks.

    Raises:
        UsageError: the nodes have none, or fewer CPUs, or their image is without launchers.
    """
    again = f"make clean NAME={cluster.name}, then: make up NODES=2 GPUS=8"
    if cluster.choices().launchers == "0":
        raise UsageError("the nodes were built without launchers (LAUNCHERS=0)", again)
    nodes = cluster.slurm.nodes()
    gpus = min(node.gpus for node in nodes)
    if not gpus:
        raise UsageError("not all nodes have GPUs, by which launchers count ranks", again)
    if min(node.cpus for node in nodes) < gpus:
        raise UsageError(f"launchers take a CPU for each of the {gpus} GPUs of a node, and there are fewer", again)
    return len(nodes), gpus


def run_all(cluster: Cluster, console: Console, names: str) -> None:
    """One launcher after another: the sum on all GPUs, then some steps of training; a table of all at the end.

    Raises:
        JobFailed: the names of those that did not end well, after all have run.
    """
    chosen, (nodes, gpus) = require(names), shape(cluster)
    training.check_alone(cluster.name, cluster.workspace())
    few = nodes * min(gpus, max(1, RANKS_TO_TRAIN // nodes))
    fit = next(ranks for ranks in range(min(few, gpus), 0, -1) if few % ranks == 0)  # on one node
    words = training_words(prepare.text(cluster), few)
    rows, failed, losses = [], [], set()
    for each in chosen:
        size = 1 if each.one_node else nodes
        try:
            proof = prove(cluster, each, size, gpus)
            loss = train(cluster, each, size, fit if each.one_node else few // nodes, words)
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
        raise JobFailed(f"{len(failed)} of {len(chosen)} launchers did not end well: {', '.join(failed)}", "see above")
    if max(losses, default=0) - min(losses, default=0) > SAME:
        raise JobFailed("ranks train the same under every launcher, but the losses above differ")


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
