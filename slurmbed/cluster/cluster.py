"""A cluster's life: up, scale, down, clean, purge. Each is a list of steps."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from slurmbed.cluster import host as machine
from slurmbed.cluster.lock import lock
from slurmbed.cluster.plan import Choices, Plan, Settings, choices_so_far, make_plan
from slurmbed.cluster.readiness import Readiness, works
from slurmbed.engine.compose import IMAGES_PROJECT, OURS, ROOT, Compose
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.interrupt import uninterrupted
from slurmbed.process import Result, last_lines, run
from slurmbed.slurm.client import Slurm
from slurmbed.slurm.records import SHOW_NODES, Node, parse_nodes
from slurmbed.spec import accounts, gpus
from slurmbed.spec.model import READY_QOS
from slurmbed.wait import Pending, wait_until

USER = "alice"
SERVICES = ("db", "slurmdbd", "slurmctld", "login")


def silent(_: str) -> None:
    """The default of ``say``."""


class Cluster:
    """The cluster ``settings.name`` on the Docker engine that answers; ``say`` hears of each step.

    Raises:
        UsageError: settings that no engine needs to be asked about.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None] = silent):
        settings.check()
        self.settings, self.say = settings, say
        self.name = settings.name
        self.compose = Compose(self.name)
        self.slurm = Slurm(self.as_user(USER))
        self.readiness = Readiness(self.compose, self.slurm)

    # ---- its life ----

    def up(self) -> list[Node]:
        """Make or start the cluster, with images built anew where their files changed, and wait until it is ready.

        Raises:
            UsageError: bad input; nothing was changed.
            SlurmbedError: anything else; what was started is removed again unless it was there or RETAIN is set.
        """
        self.ensure_engine()
        with self.lock("up"):
            plan = self.plan()
            self.build(plan)
            return self.bring_up(plan)

    def scale(self) -> list[Node]:
        """Grow or shrink the running cluster on the images it runs on; jobs of removed nodes are requeued."""
        self.require_engine()
        with self.lock("scale"):
            self.require_running()
            return self.bring_up(self.plan())

    def bring_up(self, plan: Plan) -> list[Node]:
        nodes = len(plan.slices)
        try:
            if self.working_nodes():
                self.retire_nodes_above(nodes)
            self.start(plan)
            self.readiness.wait_for_controller()
            if plan.shape:
                accounts.apply(plan.shape, self.readiness.as_root)
            self.retire_nodes_above(nodes)
            self.delete_nodes_above(nodes)
            self.say("waiting until Slurm is ready")
            self.readiness.wait_ready(nodes, READY_QOS.name if plan.shape and plan.shape.enforces_limits else "")
            return self.readiness.nodes()
        except BaseException as error:
            self.give_up(error, plan.exists)
            raise

    def down(self) -> None:
        """Stop the containers; jobs, accounting, home directories and keys stay."""
        self.require_engine()
        with self.lock("down"):
            self.require()
            self.require_own()
            self.compose.by_name("stop", timeout=300).check()

    def clean(self) -> None:
        """Remove the cluster's containers, volumes and network."""
        self.require_engine()
        with self.lock("clean"):
            self.require_own()
            self.remove()

    def purge(self) -> None:
        """Remove the cluster and all images of slurmbed, also the base image if it was bootstrapped here.

        Raises:
            UsageError: another container is on the images; nothing was removed.
        """
        self.require_engine()
        with self.lock("purge"), self.lock("purge", IMAGES_PROJECT):
            self.require_own()
            form = '{{.Names}}\t{{.Label "com.docker.compose.project"}}'
            label = f"label={OURS}"  # a container has the labels of its image
            listed = run(["docker", "ps", "--all", "--filter", label, "--format", form], timeout=30).check()
            own = {self.compose.container_name(c.service) for c in self.compose.containers()}
            for container, project in (line.split("\t") for line in listed.stdout.splitlines()):
                if container not in own:
                    hint = (
                        f"docker rm --force {container}" if project == IMAGES_PROJECT else f"make clean NAME={project}"
                    )
                    raise UsageError(f"another container is on the images: {container}", hint)
            self.remove()
            images = run(["docker", "images", "--quiet", "--filter", label], timeout=30).check().stdout.split()
            if images:
                run(["docker", "rmi", "--force", *dict.fromkeys(images)], timeout=300).check()

    # ---- what it is ----

    def as_user(self, user: str) -> Callable[[Sequence[str]], Result]:
        """A runner of commands as ``user`` on the login node, in /workspace."""
        options = ("--workdir", "/workspace")
        return lambda words: run(self.compose.exec_argv("login", words, user, options), timeout=120)

    def choices(self) -> Choices:
        """What the cluster was made with, or would be."""
        return choices_so_far(self.compose)

    def workspace(self) -> Path:
        """The folder of the host that is /workspace in the cluster."""
        return self.choices().workspace

    def write(self, file: str, content: bytes) -> Path:
        """Write a file of the workspace, as the user that jobs run as, and return its path on the host.

        The host's user would follow what links a job has put there.

        Args:
            file: its path from the workspace; its folder is made if need be.
        """
        script = 'mkdir -p "${1%/*}" && rm -f "$1" && cat >"$1"'
        options = ("--interactive", "--workdir", "/workspace")
        with tempfile.TemporaryFile() as held:
            held.write(content)
            held.seek(0)
            argv = self.compose.exec_argv("login", ["sh", "-c", script, "sh", file], USER, options)
            run(argv, timeout=120, stdin=held).check()
        return self.workspace() / file

    def is_running(self) -> bool:
        """Whether the containers that every cluster has all run."""
        running = {c.service for c in self.compose.containers() if c.state == "running"}
        return running.issuperset(SERVICES)

    def require(self) -> None:
        """UsageError unless there is such a cluster."""
        self.require_engine()
        self.require_no_strangers()
        if not self.compose.containers():
            raise UsageError(f"there is no cluster {self.name}", "make one: make up")

    def require_no_strangers(self) -> None:
        """UsageError if a Compose project of this name is there that is none of slurmbed's."""
        if strangers := self.compose.strangers():
            raise UsageError(
                f"{self.name} is the name of something that slurmbed did not make: {', '.join(strangers)}",
                "choose another one with NAME=..; what an old version of slurmbed left is removed by: "
                f"docker compose -p {self.name} down --volumes",
            )

    def require_own(self) -> None:
        """UsageError if the cluster is not slurmbed's, or was made from another clone and nobody said ADOPT."""
        self.require_no_strangers()
        made_from = self.compose.made_from()
        if made_from not in (None, ROOT) and not self.settings.adopt:
            raise UsageError(
                f"the cluster {self.name} was made from {made_from}, and has its workspace; this is {ROOT}",
                "choose another name with NAME=.., or use that cluster as it is with ADOPT=1",
            )

    def require_running(self) -> None:
        self.require()
        if not self.is_running():
            raise UsageError(f"the cluster {self.name} is not running", "start it: make up")

    def working_nodes(self) -> int:
        """How many nodes work now; 0 if slurmctld does not answer."""
        if not any(c.service == "slurmctld" and c.state == "running" for c in self.compose.containers()):
            return 0
        shown = self.readiness.as_root(["timeout", "10", *SHOW_NODES])
        return sum(works(node) for node in parse_nodes(shown.stdout)) if shown.ok else 0

    # ---- steps ----

    def lock(self, command: str, name: str = "") -> AbstractContextManager[None]:
        """While it is held no other command changes the cluster, or the images."""
        engine = run(["docker", "info", "--format", "{{.ID}}"], timeout=30).check().stdout.strip()
        return lock(engine, name or self.name, f"{command} NAME={self.name}", self.say)

    def ensure_engine(self) -> None:
        """An engine and Compose v2 that answer; scripts/engine installs what is missing where it can."""
        if run([str(ROOT / "scripts" / "engine")], timeout=1200, capture=False).returncode:
            raise SlurmbedError("no usable Docker engine (see above)")

    def require_engine(self) -> None:
        """SlurmbedError unless an engine and Compose answer; nothing is installed."""
        if not shutil.which("docker"):
            raise SlurmbedError("the Docker engine does not answer: there is no docker command", "make up installs it")
        answer = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout=30)
        if not answer.ok:
            raise SlurmbedError("the Docker engine does not answer", "make up starts it", last_lines(answer.stderr))
        if not run(["docker", "compose", "version"], timeout=30).ok:
            raise SlurmbedError("Docker Compose v2 is missing", "make up installs it")

    def plan(self) -> Plan:
        """What to make, checked against the host, with the engine there."""
        self.ensure_engine()
        self.require_own()
        host = machine.Host.read()
        plan = make_plan(self.settings, self.compose, host)
        machine.check_disk(host, plan.images_are_there())
        login_runs = any(c.service == "login" and c.state == "running" for c in self.compose.containers())
        if not (login_runs and self.compose.port("login", 22) == plan.ssh_port):
            machine.check_port(plan.ssh_port)
        self.compose.env.update(plan.environment())
        if self.settings.gpus or self.settings.config:
            groups = dict.fromkeys((part.gpus, part.features.partition(",")[0]) for part in plan.slices if part.gpus)
            for notice in filter(None, (gpus.notice(*group) for group in groups)):
                self.say(notice)
        return plan

    def build(self, plan: Plan) -> None:
        """Base image and images; what is cached costs a second. The first build shows its progress."""
        with self.lock("up", IMAGES_PROJECT):
            self.build_images(plan)

    def build_images(self, plan: Plan) -> None:
        first = not plan.images_are_there()
        base = [str(ROOT / "scripts" / "base-image"), machine.suite(plan.slurm)]
        run(base, timeout=900, capture=False).check("the base image could not be had (see above)")
        if first:
            self.say("building the images: a few minutes the first time, seconds later")
        # Compose labels images with the project: under one name for all clusters, they are the same images.
        shared = Compose(IMAGES_PROJECT, plan.environment())
        words = ("--progress", "auto" if first else "plain", "build")
        built = shared.with_overlay(plan.slices[:1], *words, timeout=3600, capture=not first)
        built.check("the images could not be built")

    def start(self, plan: Plan) -> None:
        nodes = len(plan.slices)
        self.say(f"starting {nodes} nodes, login, slurmctld, slurmdbd and db")
        words = ("up", "--detach", "--no-build", "--remove-orphans")
        self.compose.with_overlay(plan.slices, *words, timeout=300 + nodes, shape=plan.shape).check()
        self.compose.remove([c.service for c in self.compose.containers() if (c.node_number or 0) > nodes])

    def nodes_above(self, nodes: int) -> str:
        """Names of the records with a higher number than the cluster is to have, as scontrol takes them."""
        return ",".join(n.name for n in self.readiness.nodes() if int(n.name.rpartition("-")[2]) > nodes)

    def retire_nodes_above(self, nodes: int) -> None:
        """Take nodes out of use before their containers go: slurmctld ends and requeues their jobs."""
        if names := self.nodes_above(nodes):
            words = ["scontrol", "update", f"NodeName={names}", "State=DOWN", "Reason=removed"]
            self.readiness.as_root(words).check()

    def delete_nodes_above(self, nodes: int) -> None:
        """Delete the records of nodes whose containers are gone."""
        names = self.nodes_above(nodes)
        if not names:
            return
        self.say(f"removing {names}")

        def check() -> None:
            deleted = self.readiness.as_root(["scontrol", "delete", f"NodeName={names}"])
            if not deleted.ok:
                raise Pending(deleted.output.strip())

        wait_until(check, what=f"deleting {names}", timeout=60)

    def give_up(self, error: BaseException, existed: bool) -> None:
        """Show why, then remove what was started, unless it was there before or the user wants to look at it."""
        try:
            if not isinstance(error, KeyboardInterrupt):
                self.tell(self.diagnosis())
        except (SlurmbedError, KeyboardInterrupt) as second:
            self.tell(f"no diagnosis: {second}")
        if existed or self.settings.retain:
            self.tell(f"the cluster {self.name} is left as it is; remove it with: make clean NAME={self.name}")
            return
        with uninterrupted(lambda: self.tell("still removing what was started")):
            # An engine that was told to make a container makes it, even when whoever told it so has been ended.
            self.remove(looks=2)
        self.tell("removed what was started; keep it next time with RETAIN=1")

    def tell(self, text: str) -> None:
        """``say``, where nothing must be left undone because nobody can hear it: a closed terminal, a pipe's end."""
        with suppress(OSError, SystemExit):  # rich ends the program at a broken pipe
            self.say(text)

    def remove(self, looks: int = 1) -> None:
        """Remove containers, volumes and network, until so many looks in a row, half a second apart, find nothing."""
        empty = 0

        def check() -> None:
            nonlocal empty
            words = ("down", "--volumes", "--remove-orphans", "--timeout", "2")
            removed = self.compose.by_name(*words, timeout=300)
            left = self.compose.leftovers()
            empty = 0 if left else empty + 1
            if empty < looks:
                raise Pending(f"there is still {', '.join(left)}; {last_lines(removed.stderr, 1).strip()}")

        wait_until(check, what=f"removing {self.name}", timeout=600, interval=0.5)

    def diagnosis(self) -> str:
        """``sinfo -R`` and the last lines of every daemon."""
        parts = []
        containers = self.compose.containers()
        if any(c.service == "slurmctld" and c.state == "running" for c in containers):
            reasons = self.readiness.as_root(["timeout", "5", "sinfo", "-R"]).output
            parts.append("sinfo -R:\n" + last_lines(reasons))
        for c in containers:
            parts.append(f"{c.service} ({c.status}):\n" + last_lines(self.compose.last_lines(c.service)))
        return "\n".join(parts)
