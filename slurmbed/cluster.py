"""A cluster's life: up, scale, down, clean, purge. Each is a list of steps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slurmbed import host as machine
from slurmbed.compose import ROOT, Compose, Slice
from slurmbed.errors import NotReady, SlurmbedError, UsageError
from slurmbed.parse import Node, parse_nodes
from slurmbed.run import Result, last_lines, run
from slurmbed.slurm import Slurm
from slurmbed.wait import Pending, wait_until

USER = "alice"
WORKSPACE = ROOT / "workspace"  # what nodes see as /workspace, unless told otherwise
SERVICES = ("db", "slurmdbd", "slurmctld", "login")
IMAGE_KINDS = ("db", "control", "node")
WORKING_STATES = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}
DEFAULT_NODES = 2
DEFAULT_SLURM, DEFAULT_TORCH = "24.11", "debian"


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a cluster; empty means: the default, or as it is now."""

    name: str = "slurmbed"
    nodes: str = ""
    cpus: str = ""
    memory: str = ""
    slurm: str = ""
    torch: str = ""
    ssh_port: str = ""
    retain: str = ""
    workspace: str = ""


def silent(_: str) -> None:
    """The default of ``say``."""


class Cluster:
    """The cluster ``settings.name`` on the Docker engine that answers; ``say`` hears of each step."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = silent):
        self.settings, self.say = settings, say
        self.name = machine.check_name(settings.name)
        self.compose = Compose(self.name)

    # ---- its life ----

    def up(self) -> list[Node]:
        """Make or start the cluster and wait until it is ready.

        Raises:
            UsageError: bad input; nothing was changed.
            SlurmbedError: anything else; what was started is removed again unless RETAIN is set.
        """
        self.check_words()
        self.ensure_engine()
        host = machine.Host.read()
        plan = self.plan(host)
        if not plan.exists:
            machine.check_port(plan.ssh_port)
        machine.check_disk(host, images_are_there(plan.tag))
        self.compose = Compose(self.name, plan.environment())
        self.build(plan)
        nodes = len(plan.slices)
        try:
            if self.working_nodes():
                self.retire_nodes_above(nodes)
            self.start(plan)
            self.wait_for_controller()
            self.retire_nodes_above(nodes)
            self.delete_nodes_above(nodes)
            self.wait_ready(nodes)
        except (SlurmbedError, KeyboardInterrupt) as error:
            self.give_up(error, plan.exists)
            raise
        return self.slurm.nodes()

    def ready_image(self) -> str:
        """The node image's name, built if need be: for what needs torch but no cluster."""
        self.ensure_engine()
        host = machine.Host.read()
        plan = self.plan(host)
        machine.check_disk(host, images_are_there(plan.tag))
        self.compose = Compose(self.name, plan.environment())
        self.build(plan)
        return f"slurmbed-node:{plan.tag}"

    def start(self, plan: "Plan") -> None:
        nodes = len(plan.slices)
        self.say(f"starting {nodes} nodes, login, slurmctld, slurmdbd and db")
        words = ("up", "--detach", "--no-build", "--remove-orphans")
        self.compose.with_overlay(plan.slices, *words, timeout=300 + nodes).check()
        self.compose.remove([c.service for c in self.compose.containers() if (c.node_number or 0) > nodes])

    def down(self) -> None:
        """Stop the containers; jobs, accounting, home directories and keys stay."""
        self.require()
        self.compose.by_name("stop", timeout=300).check()

    def clean(self) -> None:
        """Remove the cluster's containers, volumes and network."""
        self.compose.by_name("down", "--volumes", "--remove-orphans", "--timeout", "2", timeout=300).check()

    def purge(self) -> None:
        """Remove the cluster and all images of slurmbed, also the base image if it was bootstrapped here.

        Raises:
            UsageError: another cluster still runs on the images.
        """
        self.clean()
        label = "label=org.slurmbed"
        using = run(["docker", "ps", "--all", "--quiet", "--filter", label], timeout=30).check().stdout.split()
        if using:
            form = '{{index .Config.Labels "com.docker.compose.project"}}'
            names = run(["docker", "inspect", "--format", form, *using], timeout=30).check().stdout.split()
            raise UsageError(
                f"the images stay: other clusters use them: {', '.join(sorted(set(names)))}",
                f"make purge NAME={sorted(set(names))[0]}",
            )
        images = run(["docker", "images", "--quiet", "--filter", label], timeout=30).check().stdout.split()
        if images:
            run(["docker", "rmi", "--force", *dict.fromkeys(images)], timeout=300).check()

    # ---- what it consists of ----

    @cached_property
    def slurm(self) -> Slurm:
        """Slurm, as the unprivileged user on the login node."""
        return Slurm(self.as_user(USER))

    @cached_property
    def workspace(self) -> Path:
        """The folder of the host that is /workspace in the cluster: as asked, as it is, or the project's own."""
        if self.settings.workspace:
            path = Path(self.settings.workspace).resolve()
            if not path.is_dir():
                raise UsageError(f"WORKSPACE={self.settings.workspace}: not a folder", "name the folder of your jobs")
            return path
        if any(c.service == "login" for c in self.compose.containers()):
            mounts = self.compose.inspect("login")["Mounts"]
            return next(Path(mount["Source"]) for mount in mounts if mount["Destination"] == "/workspace")
        return WORKSPACE

    def as_user(self, user: str) -> Callable[[Sequence[str]], Result]:
        options = ("--workdir", "/workspace")
        return lambda words: run(self.compose.exec_argv("login", words, user, options), timeout=120)

    def as_root(self, words: Sequence[str]) -> Result:
        return self.compose.exec("slurmctld", words)

    def require(self) -> None:
        """UsageError unless there is such a cluster."""
        self.require_engine()
        if not self.compose.containers():
            raise UsageError(f"there is no cluster {self.name}", "make one: make up")

    def require_running(self) -> None:
        self.require()
        if any(c.state != "running" for c in self.compose.containers() if c.service in SERVICES):
            raise UsageError(f"the cluster {self.name} is not running", "start it: make up")

    def working_nodes(self) -> int:
        """How many nodes work now; 0 if the cluster does not run."""
        if not any(c.service == "slurmctld" and c.state == "running" for c in self.compose.containers()):
            return 0
        answer = self.as_root(["scontrol", "--oneliner", "show", "nodes"])
        return sum(works(node) for node in parse_nodes(answer.stdout))

    # ---- steps of up ----

    def check_words(self) -> None:
        """What can be refused without an engine."""
        if self.settings.nodes:
            machine.whole_number("NODES", self.settings.nodes, 1, machine.MAX_NODES)
        if self.settings.slurm:
            machine.suite(self.settings.slurm)
        if self.settings.torch not in ("", "debian", "pypi"):
            raise UsageError(f"TORCH={self.settings.torch}: not known", "choose debian or pypi")

    def ensure_engine(self) -> None:
        """An engine and Compose v2 that answer; scripts/engine installs what is missing where it can."""
        if run([str(ROOT / "scripts" / "engine")], timeout=1200, capture=False).returncode:
            raise SlurmbedError("no usable Docker engine (see above)")

    def require_engine(self) -> None:
        answer = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout=30)
        if not answer.ok:
            raise SlurmbedError("the Docker engine does not answer", "make up starts it", last_lines(answer.output))

    def plan(self, host: machine.Host) -> "Plan":
        """What the user asks for; what is not said stays as the containers are now, or is the default.

        So a cluster can grow without its nodes being made anew under their jobs.
        """
        containers = self.compose.containers()
        services = {c.service for c in containers}
        there = sum(1 for c in containers if c.node_number)
        count = machine.whole_number("NODES", self.settings.nodes or there or DEFAULT_NODES, 1, machine.MAX_NODES)
        new = machine.slice_for(host, count, self.settings.cpus, self.settings.memory)
        keep = not (self.settings.cpus or self.settings.memory)
        names = [f"node-{number}" for number in range(1, count + 1)]
        slices = [self.compose.slice_of(name) if keep and name in services else new for name in names]
        version, torch, port = DEFAULT_SLURM, DEFAULT_TORCH, ""
        if "login" in services:
            login = self.compose.inspect("login")
            version, _, torch = login["Config"]["Image"].rpartition(":")[2].partition("-")
            port = login["HostConfig"]["PortBindings"]["22/tcp"][0]["HostPort"]
        return Plan(
            exists=bool(containers),
            slices=slices,
            slurm=self.settings.slurm or version,
            torch=self.settings.torch or torch,
            ssh_port=self.settings.ssh_port or port,
            workspace=self.workspace,
        )

    def build(self, plan: "Plan") -> None:
        """Base image and images; what is cached costs a second. The first build shows its progress."""
        first = not images_are_there(plan.tag)
        base = [str(ROOT / "scripts" / "base-image"), machine.suite(plan.slurm)]
        run(base, timeout=900, capture=False).check("the base image could not be had (see above)")
        if first:
            self.say("building the images: a few minutes the first time, seconds later")
        words = ("--progress", "auto" if first else "plain", "build")
        built = self.compose.with_overlay(plan.slices[:1], *words, timeout=3600, capture=not first)
        built.check("the images could not be built")

    def nodes_above(self, nodes: int) -> str:
        """Names of the records with a higher number than the cluster is to have, as scontrol takes them."""
        return ",".join(node.name for node in self.slurm.nodes() if int(node.name.rpartition("-")[2]) > nodes)

    def retire_nodes_above(self, nodes: int) -> None:
        """Take nodes out of use before their containers go: slurmctld ends and requeues their jobs."""
        if names := self.nodes_above(nodes):
            self.as_root(["scontrol", "update", f"NodeName={names}", "State=DOWN", "Reason=removed"]).check()

    def delete_nodes_above(self, nodes: int) -> None:
        """Delete the records of nodes whose containers are gone."""
        names = self.nodes_above(nodes)
        if not names:
            return
        self.say(f"removing {names}")

        def check() -> None:
            deleted = self.as_root(["scontrol", "delete", f"NodeName={names}"])
            if not deleted.ok:
                raise Pending(deleted.output.strip())

        wait_until(check, what=f"deleting {names}", timeout=60)

    def wait_for_controller(self) -> None:
        def check() -> None:
            self.check_containers()
            ping = self.as_root(["scontrol", "ping"])
            if not ping.ok or "is UP" not in ping.stdout:
                raise Pending(" ".join(ping.output.split())[-200:] or "no answer from slurmctld")

        wait_until(check, what="slurmctld answers", timeout=90)

    def check_containers(self) -> None:
        """NotReady if one has ended: waiting longer would not help."""
        ended = [c for c in self.compose.containers() if c.state in ("exited", "dead")]
        if ended:
            raise NotReady(", ".join(f"{c.service}: {c.status}" for c in ended))

    def wait_ready(self, nodes: int) -> None:
        """Block until all nodes work, a job ran on them as the user, and accounting has it.

        Nodes that are busy with jobs count as working; the job then runs on the idle ones.
        """
        self.say("waiting until Slurm is ready")
        timeout = 60 + 2 * nodes

        def all_nodes_work() -> list[str]:
            self.check_containers()
            known = {node.name: node for node in self.slurm.nodes()}
            missing = [f"node-{i}" for i in range(1, nodes + 1) if f"node-{i}" not in known]
            if missing:
                raise Pending(f"not registered: {', '.join(missing)}")
            lame = [f"{n.name} {'+'.join((n.state, *n.flags))}" for n in known.values() if not works(n)]
            if lame:
                raise Pending(", ".join(lame))
            return [node.name for node in known.values() if node.is_idle]

        idle = wait_until(all_nodes_work, what="all nodes idle", timeout=timeout, hint="see: make logs")
        if idle:
            self.run_probe(idle, timeout)

    def run_probe(self, nodes: list[str], timeout: float) -> None:
        words = [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", "--job-name=ready", "--time=1"]
        ran = self.slurm.runner(["srun", *words, f"--immediate={int(timeout)}", "printenv", "SLURM_JOB_ID"]).check()
        job_ids = re.findall(r"^\d+$", ran.stdout, re.MULTILINE)
        if len(job_ids) != len(nodes):
            raise NotReady(f"srun on {len(nodes)} nodes ran {len(job_ids)} tasks", "", last_lines(ran.output))

        self.slurm.wait(job_ids[0], timeout)

        def accounted() -> None:
            rows = self.slurm.accounting(job_ids[0])
            if not rows or any(row["State"] != "COMPLETED" for row in rows):
                raise Pending(f"accounting of job {job_ids[0]}: {[row['State'] for row in rows]}")

        wait_until(accounted, what="sacct shows the job", timeout=timeout)

    def give_up(self, error: BaseException, existed: bool) -> None:
        """Show why, then remove what ``up`` started, unless it was there before or the user wants to look at it."""
        if isinstance(error, SlurmbedError):
            self.say(self.diagnosis())
        if existed or self.settings.retain:
            self.say(f"the cluster {self.name} is left as it is; remove it with: make clean NAME={self.name}")
        else:
            self.clean()
            self.say("removed what was started; keep it next time with RETAIN=1")

    def diagnosis(self) -> str:
        """``sinfo -R`` and the last lines of every daemon."""
        parts = []
        containers = self.compose.containers()
        if any(c.service == "slurmctld" and c.state == "running" for c in containers):
            parts.append("sinfo -R:\n" + last_lines(self.as_root(["timeout", "5", "sinfo", "-R"]).output))
        for c in containers:
            parts.append(f"{c.service} ({c.status}):\n" + last_lines(self.compose.last_lines(c.service)))
        return "\n".join(parts)


@dataclass(frozen=True)
class Plan:
    """A cluster to make, every choice made."""

    exists: bool
    slices: list[Slice]
    slurm: str
    torch: str
    ssh_port: str
    workspace: Path

    @property
    def tag(self) -> str:
        return f"{self.slurm}-{self.torch}"

    def environment(self) -> dict[str, str]:
        """The variables of docker-compose.yml."""
        return {
            "TAG": self.tag,
            "SUITE": machine.suite(self.slurm),
            "TORCH": self.torch,
            "CA_BUNDLE": machine.ca_bundle(),
            "JOB_UID": str(machine.job_uid(self.workspace)),
            "SSH_PORT": self.ssh_port,
            "SSH_PUBLIC_KEY": machine.ssh_public_key(),
            "WORKSPACE": str(self.workspace),
        }


def images_are_there(tag: str) -> bool:
    names = [f"slurmbed-{kind}:{tag}" for kind in IMAGE_KINDS]
    return run(["docker", "image", "inspect", "--format", ".", *names], timeout=30).ok


def works(node: Node) -> bool:
    return node.state in WORKING_STATES and set(node.flags) <= {"CLOUD", "DYNAMIC_NORM", "COMPLETING"}
