"""Real faults: kill, pause, disconnect or restart a node or a daemon, and undo it all."""

from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.readiness import wait_ready
from slurmbed.errors import UsageError


class Faults:
    """Faults of one cluster. ``service`` is node-2, slurmctld, slurmdbd, db or login.

    As a context manager it heals the cluster at the end.

    Raises:
        UsageError: the cluster has no such service.
        SlurmbedError: the engine refuses.
    """

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.nodes = cluster.look().highest_node
        self.paused: set[str] = set()
        self.cut_off: dict[str, dict[str, dict]] = {}

    def __enter__(self) -> "Faults":
        return self

    def __exit__(self, *error: object) -> None:
        self.heal()

    def kill(self, service: str) -> None:
        """Kill a container at once, as if its machine lost power. Docker does not start it again."""
        self._act("kill", service)

    def stop(self, service: str) -> None:
        """Stop a container, like a machine that is shut down."""
        self._act("stop", service)

    def start(self, service: str) -> None:
        """Start a container that was killed or stopped."""
        self._act("start", service)

    def restart(self, service: str) -> None:
        """Stop and start a container."""
        self._act("restart", service)

    def pause(self, service: str) -> None:
        """Freeze all processes of a container, like a machine that hangs."""
        self._act("pause", service)
        self.paused.add(service)

    def unpause(self, service: str) -> None:
        self._act("unpause", service)
        self.paused.discard(service)

    def cut(self, service: str) -> None:
        """Disconnect a container from all networks of the cluster, like a pulled cable. Its processes continue."""
        engine, container = self.cluster.engine, self._container(service)
        self.cut_off.setdefault(service, engine.networks_of(container))
        for network in self.cut_off[service]:
            engine.disconnect(container, network)

    def mend(self, service: str) -> None:
        """Reconnect a container that was cut off.

        If another one got its address meanwhile, it is restarted, because Slurm keeps addresses.
        """
        engine, container = self.cluster.engine, self._container(service)
        before = self.cut_off.pop(service, {})
        for network, endpoint in before.items():
            engine.connect(container, network, endpoint["Aliases"] or ())
        now = engine.networks_of(container)
        if any(now[network]["IPAddress"] != endpoint["IPAddress"] for network, endpoint in before.items()):
            self.restart(service)

    def heal(self) -> None:
        """Undo all faults, and block until the cluster is ready.

        Raises:
            WaitTimeout: it does not become ready; with the reason.
        """
        for service in list(self.paused):
            self.unpause(service)
        for service in list(self.cut_off):
            self.mend(service)
        snapshot = self.cluster.look()
        for service, container in snapshot.services.items():
            if not container.is_running:
                self.start(service)
        qos = snapshot.spec.ready_qos if snapshot.spec else ""
        wait_ready(self.cluster.engine, self.cluster.name, self.cluster.user, self.nodes, qos)

    def _act(self, action: str, service: str) -> None:
        self.cluster.engine.act(action, self._container(service))

    def _container(self, service: str) -> str:
        services = self.cluster.snapshot.services
        if service not in services:
            raise UsageError(f"the cluster has no {service!r}", f"choose from {', '.join(sorted(services))}")
        return services[service].name
