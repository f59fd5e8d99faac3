"""The Compose overlay for N nodes, each with its slice of the host. Pure: values in, a dict out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from slurmbed.project import BASE_FILE, ROOT
from slurmbed.spec import slurm_conf
from slurmbed.spec.gpus import Gpus
from slurmbed.spec.model import ClusterSpec
from slurmbed.spec.slices import Slice

OURS = "org.slurmbed"  # label: "cluster" on what belongs to a cluster, "image" and "base" on images
CLONE_LABEL = "org.slurmbed.clone"  # the folder that a cluster was made from
CHOICES_LABEL = "org.slurmbed.choices"  # what the cluster was made with, as JSON: there is no other record
SPEC_LABEL = "org.slurmbed.spec"  # the configuration file that it was made with, as JSON
SLICE_LABEL = "org.slurmbed.slice"  # of a node, as JSON
SERVICES = ("db", "slurmdbd", "slurmctld", "login")
REST = "slurmrestd"  # the service and, in docker-compose.yml, the profile "rest" that it needs
REGISTRY = "registry"  # the service, of the profile "containers"
WITHOUT_CONF = ("db", "slurmdbd", REST, REGISTRY)
"""Services that no line of slurm.conf of a configuration file concerns."""
DAEMONS = (*WITHOUT_CONF, "slurmctld")
"""Services that no user's process runs in, so that they see no folder of the host."""
NODES_IN_BASE_FILE = 2
SECCOMP = ROOT / "scripts" / "containers.seccomp.json"
"""The calls of the kernel that no node of a cluster with containers in jobs has."""
BINDS = "SYS_NICE"  # for nodes with dedicated CPUs: slurmstepd binds users' processes


def overlay(
    slices: Sequence[Slice],
    spec: ClusterSpec | None,
    labels: Mapping[str, str],
    shared: Sequence[Path] = (),
    selinux: bool = False,
    cgroups: bool = False,
    rest: bool = False,
    registry_port: int | None = None,
    apparmor: bool = False,
) -> dict:
    """The overlay.

    Args:
        labels: go on every container.
        shared: folders of the host that login and the nodes see under the same paths.
        selinux: label the folders, because SELinux lets containers use only what has their label.
        cgroups: let Slurm make cgroups below those of the nodes.
        rest: with slurmrestd, whose socket the login node sees.
        registry_port: let jobs run in containers, and publish the registry of their images on this port of the host.
        apparmor: switch the engine's AppArmor profile off for these containers, because it forbids mounts.
    """
    gpus = [group.gpus for group in spec.nodes] if spec else [node_slice.gpus for node_slice in slices[:1]]
    added = [*([REST] if rest else []), *([REGISTRY] if registry_port else [])]
    services: dict[str, dict] = {name: {} for name in (*SERVICES, *added)}
    for number, node_slice in enumerate(slices, start=1):
        services[f"node-{number}"] = node_service(number, slices[:number])
        services[f"node-{number}"]["labels"] = verbatim(
            {SLICE_LABEL: node_slice.model_dump_json(exclude_defaults=True)}
        )
    for service in services.values():
        service["labels"] = {**verbatim(labels), **service.get("labels", {})}
    if gres := most_of_each_type(gpus):  # slurmctld must know all that nodes have
        services["slurmctld"]["environment"] = {"NODE_GRES": ",".join(gres)}
    if cgroups:
        let_nodes_make_cgroups(services)
    if lines := slurm_conf.lines(spec, bind_cpus=any(node_slice.own_cpus for node_slice in slices), cgroups=cgroups):
        add_lines(services, lines)
    if spec:
        add_folders(services, spec)
    share(services, shared)
    if selinux:
        relabel(services)
    if rest:
        socket = {"type": "volume", "source": "rest", "target": "/run/slurmrestd", "read_only": True}
        services["login"]["volumes"] = [*services["login"].get("volumes", ()), socket]
    if registry_port:
        let_jobs_have_containers(services, registry_port, apparmor)
    for number in range(len(slices) + 1, NODES_IN_BASE_FILE + 1):
        services[f"node-{number}"] = {"profiles": ["left-out"]}
    return {"services": services}


def node_service(number: int, slices: Sequence[Slice]) -> dict:
    """The service of node-``number``, the last of ``slices``."""
    node_slice = slices[-1]
    service: dict = {
        "environment": {"NODE_CPUS": str(node_slice.cpus), "NODE_MEMORY": str(node_slice.memory)},
        "cpus": node_slice.cpu_limit,
        "mem_limit": f"{node_slice.memory_limit}m",
        "memswap_limit": f"{node_slice.memory_limit}m",
    }
    if node_slice.own_cpus:
        service.update(cpuset=",".join(map(str, node_slice.own_cpus)), cap_add=[BINDS])
    if node_slice.topology:
        service["environment"]["NODE_TOPOLOGY"] = node_slice.topology
    if node_slice.gpus:
        service["environment"]["NODE_GRES"] = node_slice.gpus.gres
        service.update(gpu_devices(node_slice))
    if node_slice.elastic:
        service["environment"]["NODE_ELASTIC"] = "1"
    if node_slice.features:
        service["environment"].update(NODE_FEATURES=",".join(node_slice.features), NODES_BEFORE=earlier_groups(slices))
    if number > NODES_IN_BASE_FILE:
        service["extends"] = verbatim({"file": str(BASE_FILE), "service": "node-1"})
        service["hostname"] = f"node-{number}"
    return service


def most_of_each_type(gpus: Sequence[Gpus]) -> list[str]:
    """The largest of gpu:h100:4 and gpu:h100:8, and the same for each other type."""
    most: dict[str, Gpus] = {}
    for each in filter(None, gpus):
        most[each.slurm_type] = max(most.get(each.slurm_type, each), each, key=lambda one: one.count)
    return [each.gres for each in most.values()]


def earlier_groups(slices: Sequence[Slice]) -> str:
    """One line per earlier node group: its last node number and its Slurm record."""
    ends = [i for i in range(len(slices) - 1) if slices[i].features != slices[i + 1].features]
    return "\n".join(f"{i + 1} {slices[i].record}" for i in ends)


def with_arguments(overlay: Mapping) -> dict:
    """The overlay with each service's environment as arguments of its entrypoint, as in the base file."""
    file = yaml.safe_load(BASE_FILE.read_text())["services"]
    services = {}
    for name, service in overlay["services"].items():
        told = [f"{key}={value}" for key, value in service.get("environment", {}).items()]
        body = {key: value for key, value in service.items() if key != "environment"}
        services[name] = {**body, "command": [*file.get(name, file["node-1"])["command"], *told]} if told else body
    return {**overlay, "services": services}


def let_nodes_make_cgroups(services: dict[str, dict]) -> None:
    """Give nodes a private cgroup namespace, in which they can write only their own cgroup."""
    for name, service in services.items():
        if name.startswith("node-"):
            service.update(cgroup="private", security_opt=["writable-cgroups=true"])
            service["environment"]["CGROUPS"] = "1"


def security_options(apparmor: bool) -> list[str]:
    """Options that let a container make user namespaces and mount in them; ``apparmor`` as for ``overlay``."""
    return [f"seccomp={SECCOMP}", *(["apparmor=unconfined"] if apparmor else [])]


def let_jobs_have_containers(services: dict[str, dict], registry_port: int, apparmor: bool) -> None:
    """Let users' processes on login and the nodes make user namespaces and mount in them; images are on a volume."""
    options = [each.replace("$", "$$") for each in security_options(apparmor)]
    volume = {"type": "volume", "source": "images", "target": "/var/lib/container-images"}
    for name, service in services.items():
        if name in DAEMONS:
            continue
        service["security_opt"] = [*service.get("security_opt", ()), *options]
        service["volumes"] = [*service.get("volumes", ()), volume]
        service["environment"] = {**service.get("environment", {}), "REGISTRY_PORT": str(registry_port)}


def add_lines(services: dict[str, dict], lines: Sequence[str]) -> None:
    """Give slurmctld, login and the nodes lines of slurm.conf."""
    environment = verbatim({"SLURM_CONF_LINES": "\n".join(lines)})
    for name, service in services.items():
        if name not in WITHOUT_CONF:
            service["environment"] = {**service.get("environment", {}), **environment}


def add_folders(services: dict[str, dict], spec: ClusterSpec) -> None:
    """Give login and the nodes the file's mounts, and these and slurmctld its hooks."""
    mounts = [bind(mount.host, mount.container, mount.read_only) for mount in spec.mounts]
    hooks = [bind(spec.hooks, "/etc/slurm/hooks", read_only=True)] if spec.hooks else []
    for name, service in services.items():
        if name in WITHOUT_CONF:
            continue
        if volumes := hooks if name == "slurmctld" else mounts + hooks:
            service["volumes"] = volumes


def bind(source: str, target: str, read_only: bool) -> dict:
    folder = verbatim({"type": "bind", "source": source, "target": target, "read_only": read_only})
    return {**folder, "bind": {"create_host_path": False}}  # as in docker-compose.yml


def relabel(services: dict[str, dict]) -> None:
    """Have the engine label the host's folders for containers, the workspace of docker-compose.yml among them."""
    workspace = {"type": "bind", "source": "${SLURMBED_WORKSPACE:-./workspace}", "target": "/workspace"}
    for name, service in services.items():
        base = () if name in DAEMONS else (workspace,)
        if mounts := (*base, *service.get("volumes", ())):
            service["volumes"] = [{**mount, "bind": {"create_host_path": False, "selinux": "z"}} for mount in mounts]


def share(services: dict[str, dict], folders: Sequence[Path]) -> None:
    """Give login and the nodes folders of the host under the same paths."""
    mounts = [bind(str(each), str(each), read_only=False) for each in folders]
    for name, service in services.items():
        if mounts and name not in DAEMONS:
            service["volumes"] = [*service.get("volumes", ()), *mounts]


def verbatim(values: Mapping) -> dict:
    """Compose replaces ``$NAME`` by a variable; ``$$`` is a dollar."""
    return {key: value.replace("$", "$$") if isinstance(value, str) else value for key, value in values.items()}


def gpu_devices(node_slice: Slice) -> dict:
    """The keys of a service that give its container the GPUs. Slurm takes any device file for an emulated one."""
    if not node_slice.gpu_ids:
        return {"devices": [f"/dev/null:/dev/emulated-gpu{i}" for i in range(node_slice.gpus.count)]}
    devices = [{"driver": "nvidia", "device_ids": list(node_slice.gpu_ids), "capabilities": ["gpu"]}]
    return {"deploy": {"resources": {"reservations": {"devices": devices}}}}
