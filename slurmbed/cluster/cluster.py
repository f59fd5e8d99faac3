"""A cluster's life: up, scale, down, clean, purge. Each is a list of steps."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from pathlib import Path

from slurmbed.cluster import elastic, images, namespaces, transfer
from slurmbed.cluster.export import export
from slurmbed.cluster.farewell import say_goodbye
from slurmbed.cluster.host import Host, check_port, gpu_names
from slurmbed.cluster.listing import clusters
from slurmbed.cluster.lock import lock
from slurmbed.cluster.plan import Plan, choices_so_far, make_plan
from slurmbed.cluster.readiness import wait_for_accounting, wait_for_rest, wait_ready
from slurmbed.cluster.removal import diagnosis, remove
from slurmbed.cluster.resize import delete_nodes_above, retire_nodes_above
from slurmbed.cluster.settings import IMAGES_PROJECT, Choices, Settings
from slurmbed.cluster.ssh_keys import let_in, public_keys
from slurmbed.cluster.timeline import Timeline
from slurmbed.engine.client import Engine
from slurmbed.engine.compose import Compose, container_name
from slurmbed.engine.overlay import OURS
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import SlurmbedError, UsageError
from slurmbed.interrupt import uninterrupted
from slurmbed.process import Result, run
from slurmbed.project import ROOT, command, option
from slurmbed.slurm.client import Slurm
from slurmbed.slurm.records import Node
from slurmbed.spec import accounts, gpus, load
from slurmbed.spec.model import USERS


class Cluster:
    """The cluster ``settings.name`` on the Docker engine that answers.

    Args:
        say: hears of each step, a line at a time.

    Attributes:
        slurm: Slurm's commands, run as ``user`` on the login node.
        timeline: what the last ``up`` or ``scale`` did, with the seconds that each step took.

    Raises:
        UsageError: mistakes in the configuration file, each with its line.
    """

    def __init__(self, settings: Settings | None = None, say: Callable[[str], None] = lambda _: None):
        self.settings, self.say = settings or Settings(), say
        self.name = self.settings.name
        self.compose = Compose(self.name)
        self.slurm = Slurm(self.as_user())
        self.timeline = Timeline()
        self.spec = load.load(self.settings.config, gpu_names) if self.settings.config else None
        self._snapshot: Snapshot | None = None

    # ---- its life ----

    def up(self) -> list[Node]:
        """Create or start the cluster, build missing images, and wait until it is ready.

        Raises:
            UsageError: bad input; nothing was changed.
            SlurmbedError: anything else; a new cluster is removed again, unless RETAIN is set.
        """
        with self.timeline.step("connect to the engine"):
            self.ensure_engine()
        with self.lock("up"), self.choosing_a_port():
            with self.timeline.step("look and plan"):
                plan = self.plan()
            with self.timeline.step("build images"):
                self.build(plan.choices, transfer.registry_of_environment())
            if plan.choices.containers and not plan.is_met_by(self.snapshot):
                with self.timeline.step("containers in jobs"):
                    namespaces.check(images.image("node", plan.choices), plan.apparmor)
            return self.bring_up(plan)

    def scale(self) -> list[Node]:
        """Add or remove nodes, with the images that the cluster runs on; jobs on removed nodes are requeued."""
        self.require_engine()
        with self.lock("scale"):
            self.require_running()
            return self.bring_up(self.plan(keep_images=True))

    def bring_up(self, plan: Plan) -> list[Node]:
        before, nodes = self.snapshot, len(plan.slices)
        try:
            if before.highest_node > nodes and before.is_running:
                retire_nodes_above(self.slurm, self.as_root, nodes)
            if not plan.is_met_by(before):
                with self.timeline.step("docker compose up"):
                    self.start(plan, before)
            if plan.spec and plan.spec.needs_accounts:
                with self.timeline.step("accounts"):
                    wait_for_accounting(self.engine, self.name)
                    accounts.apply(plan.spec, self.as_root)
            self.say("waiting until Slurm is ready")
            qos = plan.spec.ready_qos if plan.spec else ""
            if plan.choices.rest:
                with self.timeline.step("slurmrestd"):
                    wait_for_rest(self.engine, self.name)
            found = wait_ready(self.engine, self.name, self.user, plan.lasting, qos, self.timeline.stages())
            changed = delete_nodes_above(found, self.as_root, nodes, self.say)
            if elastic.attend(self.engine, self.name, found, plan.slices, self.as_root, self.say) or changed:
                found = self.slurm.nodes()
            for user in plan.users:
                keys = (*user.keys, *(public_keys() if user.name == self.user else ()))
                let_in(self.as_user(user.name), user.name, keys, self.say)
            return found
        except BaseException as error:
            self.roll_back(error, plan.exists)
            raise

    def down(self) -> None:
        """Stop the containers. Jobs are requeued; accounting, home directories and keys are kept."""
        self.require_engine()
        with self.lock("down"):
            self.require()
            self.require_own()
            if self.snapshot.is_running:
                say_goodbye(self.as_root, self.say)
            self.compose.by_name("stop", timeout=300).check()

    def clean(self) -> None:
        """Remove the cluster's containers, volumes and network."""
        self.require_engine()
        with self.lock("clean"):
            self.require_own()
            remove(self.engine, self.compose, self.look, self.say)

    def purge(self) -> None:
        """Remove the cluster and all images of slurmbed, and the base image if slurmbed made it.

        Raises:
            UsageError: another container uses the images; nothing was removed.
        """
        self.require_engine()
        with self.lock("purge"), self.lock("purge", IMAGES_PROJECT):
            self.require_own()
            for other in self.snapshot.others_on_images:
                project = other.project
                hint = command("clean", name=project) if project else f"docker rm --force {other.name}"
                raise UsageError(f"another container uses the images: {other.name}", hint)
            remove(self.engine, self.compose, self.look, self.say)
            self.engine.remove_images([each["Id"] for each in self.engine.images(OURS)])

    # ---- what it is ----

    @cached_property
    def engine(self) -> Engine:
        return Engine()

    @property
    def snapshot(self) -> Snapshot:
        """The containers, volumes, networks and images of the engine; taken once, and again after a change."""
        return self._snapshot or self.look()

    def look(self) -> Snapshot:
        """A new snapshot."""
        self._snapshot = Snapshot.take(self.engine, self.name)
        return self._snapshot

    def choices(self) -> Choices:
        """The choices that the cluster was made with, or would be."""
        return choices_so_far(self.snapshot)

    def workspace(self) -> Path:
        """The folder of the host that is /workspace in the cluster."""
        return self.choices().workspace

    def node_image(self) -> str:
        """The image of login and the nodes."""
        login = self.snapshot.services.get("login")
        return login.image_id if login else images.image("node", self.choices())

    def container_name(self, service: str) -> str:
        return container_name(self.name, service)

    def exec(self, service: str, argv: Sequence[str], *, user: str = "root", timeout: float = 60) -> Result:
        """Run a command in a service's container, as root unless told otherwise."""
        return self.engine.exec(self.container_name(service), argv, user=user, timeout=timeout)

    def as_root(self, argv: Sequence[str]) -> Result:
        """Run a command as root in slurmctld's container, for Slurm's administrator."""
        return self.exec("slurmctld", argv)

    @property
    def user(self) -> str:
        """The user who owns the workspace and, unless another one is named, runs jobs."""
        spec = self.spec or self.snapshot.spec
        return (spec.users if spec else USERS)[0].name

    def as_user(self, user: str = "") -> Callable[[Sequence[str]], Result]:
        """A runner of commands as ``user`` on the login node, in /workspace."""
        login = self.container_name("login")
        return lambda argv: self.engine.exec(login, argv, user=user or self.user, workdir="/workspace", timeout=120)

    def exec_argv(self, argv: Sequence[str], user: str = "", options: Sequence[str] = ()) -> list[str]:
        """The `docker` command that runs ``argv`` on the login node, in /workspace, on this process's streams."""
        login = self.container_name("login")
        return ["docker", "exec", "--user", user or self.user, "--workdir", "/workspace", *options, login, *argv]

    def write(self, file: str, content: bytes) -> Path:
        """Write a file of the workspace, as the user that jobs run as, and return its path on the host.

        The host's user would follow what links a job has put there.

        Args:
            file: its path from the workspace; its folder is made if need be.
        """
        script = 'mkdir -p "${1%/*}" && rm -f "$1" && cat >"$1"'
        with tempfile.TemporaryFile() as held:
            held.write(content)
            held.seek(0)
            argv = self.exec_argv(["sh", "-c", script, "sh", file], "", ["--interactive"])
            run(argv, timeout=120, stdin=held).check()
        return self.workspace() / file

    def export_logs(self, folder: Path) -> list[Path]:
        """Write the logs of daemons and jobs, and the state of Slurm and Docker, to ``folder``. Returns the files."""
        return list(export(self.engine, self.compose, self.snapshot, folder))

    def require(self) -> None:
        """UsageError unless the cluster exists."""
        self.require_engine()
        self.require_no_strangers()
        if not self.snapshot.containers:
            raise self.not_there()

    def not_there(self) -> UsageError:
        """The error if the cluster does not exist; it names those that do."""
        names = ", ".join(each.name for each in clusters(self.snapshot))
        hint = f"there are: {names}" if names else f"create one: {command('up')}"
        return UsageError(f"no such cluster: {self.name}", hint)

    def require_no_strangers(self) -> None:
        """UsageError if a Compose project that slurmbed did not make has this name."""
        if strangers := self.snapshot.strangers:
            raise UsageError(
                f"the name {self.name} is in use by resources that slurmbed did not create: {', '.join(strangers)}",
                f"choose another name with {option('name', '..')}; to remove what an old version of slurmbed left: "
                f"docker compose -p {self.name} down --volumes",
            )

    def require_own(self) -> None:
        """UsageError if slurmbed did not make the cluster, or another clone made it and ADOPT is not set."""
        self.require_no_strangers()
        made_from = self.snapshot.made_from
        if made_from not in (None, ROOT) and not self.settings.adopt:
            raise UsageError(
                f"the cluster {self.name} was made from {made_from}, and has its workspace; this is {ROOT}",
                f"choose another name with {option('name', '..')}, "
                f"or use that cluster as it is with {option('adopt', True)}",
            )

    def require_running(self) -> None:
        self.require()
        if not self.snapshot.is_running:
            raise UsageError(f"the cluster {self.name} is not running", f"start it: {command('up', name=self.name)}")

    def working_nodes(self) -> int:
        """The number of nodes that work now; 0 if the cluster does not run, or slurmctld does not answer."""
        try:
            return sum(node.works for node in self.slurm.nodes()) if self.snapshot.is_running else 0
        except SlurmbedError:
            return 0

    def ensure(self, nodes: int) -> None:
        """Start the cluster, or add nodes, until at least so many work.

        Raises:
            SlurmbedError: as ``up``.
        """
        self.ensure_engine()
        self.require_own()
        asked = self.settings.model_dump(exclude_defaults=True, exclude={"name", "nodes", "adopt", "retain"})
        if asked or self.working_nodes() < nodes:
            # Never fewer than exist: training on two nodes does not shrink a cluster of eight.
            self.settings = self.settings.model_copy(update={"nodes": None, "least_nodes": nodes})
            self.up()

    # ---- steps ----

    def lock(self, action: str, name: str = "") -> AbstractContextManager[None]:
        """A lock: while it is held no other command changes the cluster or the images. The snapshot is taken again."""
        held = lock(self.engine.info.id, name or self.name, f"{action} --name {self.name}", self.say)
        self._snapshot = None
        return held

    def choosing_a_port(self) -> AbstractContextManager[None]:
        """A lock: clusters choose a registry port one after another, because a chosen port is free until it is used."""
        chooses = self.settings.containers and not self.choices().registry_port
        return self.lock("up", "registry-port") if chooses else nullcontext()

    def install_engine(self) -> None:
        """Run scripts/engine, which installs or starts what is missing, if it can, and prints what it does."""
        if run([str(ROOT / "scripts" / "engine")], timeout=1200, capture=False).returncode:
            raise SlurmbedError("no usable Docker engine (see above)")

    def ensure_engine(self) -> None:
        """Have an engine and Compose v2 that answer; install what is missing, if possible."""
        self.compose.install = self.install_engine
        if "engine" not in self.__dict__:
            try:
                self.engine = Engine()
            except SlurmbedError:
                self.install_engine()
                self.engine = Engine()

    def require_engine(self) -> None:
        """SlurmbedError unless an engine answers; nothing is installed."""
        if not shutil.which("docker"):
            reason = "the Docker engine does not answer: there is no docker command"
            raise SlurmbedError(reason, f"{command('up')} installs it")
        _ = self.engine

    def plan(self, keep_images: bool = False) -> Plan:
        """The plan of the cluster, checked against the host.

        Args:
            keep_images: keep the images that the cluster runs on, although their files have changed.
        """
        self.ensure_engine()
        self.require_own()
        if self.snapshot.containers and images.keep(self.choices(), self.snapshot, self.engine.tag):
            self.look()
        host = Host.of(self.snapshot.info)
        plan = make_plan(self.settings, self.spec, self.snapshot, host, keep_images)
        host.check_disk(plan.choices.flavor, images_there=not images.missing(plan.choices, self.snapshot))
        if notice := host.notice(plan.choices.workspace):
            self.say(notice)
        login, port = self.snapshot.services.get("login"), plan.choices.ssh_port
        if port and not (login and login.is_running and login.ssh_port == port):
            check_port(port)
        if self.settings.gpus or self.settings.config:
            names = host.gpu_names()
            for group, each in {node_slice.group: node_slice.gpus for node_slice in plan.slices}.items():
                if notice := gpus.notice(each, names, group):
                    self.say(notice)
        return plan

    def build(self, choices: Choices, registry: str = "") -> None:
        """Get missing images: from the registry, if it has them, or by a build. Nothing is built if none is missing."""
        if images.missing(choices, self.snapshot):
            before = self.snapshot
            with self.lock("up", IMAGES_PROJECT):
                if images.missing(choices, self.snapshot):  # nobody else has built them meanwhile
                    first = not self.snapshot.images
                    transfer.obtain(choices, first, self.say, self.install_engine, registry)
            self._snapshot = before

    def start(self, plan: Plan, before: Snapshot) -> None:
        nodes = len(plan.slices)
        self.say(f"starting {nodes} nodes, login, slurmctld, slurmdbd and db")
        self._snapshot = None
        for arguments in elastic.ways_to_start(plan.lasting, nodes, plan.services):
            self.compose.with_overlay(plan.overlay, plan.environment, *arguments, timeout=300 + nodes).check()
        kept = (*plan.services, *(f"node-{number}" for number in range(1, nodes + 1)))
        self.engine.remove_containers([each.name for each in before.containers if each.service not in kept])

    def roll_back(self, error: BaseException, existed: bool) -> None:
        """Print the diagnosis. Then remove the cluster, unless it existed before or RETAIN is set."""
        try:
            if not isinstance(error, KeyboardInterrupt):
                self.tell(diagnosis(self.engine, self.look()))
        except (SlurmbedError, KeyboardInterrupt) as second:
            self.tell(f"no diagnosis: {second}")
        if existed or self.settings.retain:
            self.tell(f"the cluster {self.name} is kept; remove it with: {command('clean', name=self.name)}")
            return
        with uninterrupted(lambda: self.tell("still removing what was started")):
            remove(self.engine, self.compose, self.look, self.tell, looks=2)
        self.tell(f"removed what was started; keep it next time with {option('retain', True)}")

    def tell(self, text: str) -> None:
        """Like ``say``, but a closed terminal or pipe does not stop the clean-up."""
        with suppress(OSError, SystemExit):  # rich ends the program at a broken pipe
            self.say(text)
