"""When a cluster is ready: all nodes work, a job ran on them as the unprivileged user, and accounting has it."""

import re
from collections.abc import Sequence
from functools import partial

from slurmbed.engine.compose import Compose
from slurmbed.errors import NotReady
from slurmbed.process import Result, last_lines
from slurmbed.slurm.client import Slurm
from slurmbed.slurm.records import SHOW_NODES, Node, parse_nodes
from slurmbed.wait import Pending, wait_until

WORKING_STATES = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}


def works(node: Node) -> bool:
    return node.state in WORKING_STATES and set(node.flags) <= {"CLOUD", "DYNAMIC_NORM", "COMPLETING"}


class Readiness:
    """Bounded waits on one cluster.

    Args:
        slurm: Slurm as the unprivileged user on the login node.
    """

    def __init__(self, compose: Compose, slurm: Slurm):
        self.compose, self.slurm = compose, slurm

    def as_root(self, words: Sequence[str]) -> Result:
        return self.compose.exec("slurmctld", words)

    def nodes(self) -> list[Node]:
        """All node records, asked for on slurmctld's own container: login may not be up."""
        return parse_nodes(self.as_root(SHOW_NODES).check().stdout)

    def check_containers(self) -> None:
        """NotReady if one has ended, or the engine is about to start it again: waiting longer would not help."""
        ended = [c for c in self.compose.containers() if c.state in ("exited", "dead", "restarting")]
        if ended:
            raise NotReady(", ".join(f"{c.service}: {c.status}" for c in ended))

    def wait_for_controller(self) -> None:
        """Block until slurmctld answers, to the user and from the login node."""

        def check() -> None:
            self.check_containers()
            ping = self.slurm.runner(["timeout", "10", "scontrol", "ping"])
            if not ping.ok or "is UP" not in ping.stdout:
                raise Pending(" ".join(ping.output.split())[-200:] or "no answer")

        wait_until(check, what="slurmctld answers", timeout=240, hint="see: make logs")

    def wait_ready(self, nodes: int, qos: str = "") -> None:
        """Block until ready. Nodes that are busy with jobs count as working; the jobs then run on the idle ones.

        Args:
            qos: for these jobs, where users have limits.

        Raises:
            NotReady: a container ended.
            WaitTimeout: with what was missing last.
        """
        timeout = 120 + 2 * nodes
        probe = partial(self.probe, nodes, qos)
        for job_id in wait_until(probe, what="all nodes idle", timeout=timeout, hint="see: make logs"):
            self.slurm.wait(job_id, timeout)
            self.wait_accounted(job_id, timeout)

    def wait_accounted(self, job_id: str, timeout: float) -> None:
        def accounted() -> None:
            rows = self.slurm.accounting(job_id)
            states = [item.state for row in rows for item in (row, *row.steps)]
            if not states or any(state != "COMPLETED" for state in states):
                raise Pending(f"accounting of job {job_id}: {states}")

        wait_until(accounted, what="sacct shows the job", timeout=timeout)

    def idle_nodes(self, nodes: int) -> dict[str, list[str]]:
        """Names of the idle nodes by partition, once node-1 to node-``nodes`` all work; Pending until then."""
        self.check_containers()
        known = {node.name: node for node in self.nodes()}
        missing = [f"node-{i}" for i in range(1, nodes + 1) if f"node-{i}" not in known]
        if missing:
            raise Pending(f"not registered: {', '.join(missing)}")
        lame = [f"{n.name} {'+'.join((n.state, *n.flags))}" for n in known.values() if not works(n)]
        if lame:
            raise Pending(", ".join(lame))
        idle: dict[str, list[str]] = {}
        for node in known.values():
            if node.is_idle and node.partitions:
                idle.setdefault(node.partitions[0], []).append(node.name)
        return idle

    def probe(self, nodes: int, qos: str) -> list[str]:
        """Ids of jobs, one a partition, that ran on all idle nodes. Pending if waiting jobs took a node first."""
        return [self.run_on(partition, names, qos) for partition, names in self.idle_nodes(nodes).items()]

    def run_on(self, partition: str, names: list[str], qos: str) -> str:
        """The id of a job that ran on the nodes ``names``."""
        words = [
            f"--partition={partition}",
            f"--nodes={len(names)}",
            f"--nodelist={','.join(names)}",
            "--job-name=ready",
            "--time=1",
            "--immediate=10",
            *([f"--qos={qos}"] if qos else []),
        ]
        ran = self.slurm.runner(["srun", *words, "printenv", "SLURM_JOB_ID"])
        if not ran.ok:
            raise Pending(" ".join(ran.output.split())[-200:])
        job_ids = re.findall(r"^\d+$", ran.stdout, re.MULTILINE)
        if len(job_ids) != len(names):
            raise NotReady(f"srun on {len(names)} nodes ran {len(job_ids)} tasks", "", last_lines(ran.output))
        return job_ids[0]
