"""The overlay, and what docker-compose.yml must not hold."""

import json
import re

from slurmbed.engine.overlay import SECCOMP, SLICE_LABEL, overlay, with_arguments
from slurmbed.project import BASE_FILE
from slurmbed.spec.gpus import Gpus
from slurmbed.spec.slices import Slice

ONE = Slice(cpus=1, memory=512, cpu_limit=1, memory_limit=512)
TWO = Slice(cpus=2, memory=1024, cpu_limit=1, memory_limit=1024)


def services_of(*slices: Slice) -> dict:
    return overlay(slices, None, {"of": "all"})["services"]


def with_gpus(text: str, *gpu_ids: str) -> Slice:
    return ONE.model_copy(update={"gpus": Gpus.parse(text), "gpu_ids": gpu_ids})


def test_nodes_beyond_the_file_extend_its_first():
    services = services_of(ONE, ONE, TWO)
    assert list(services) == ["db", "slurmdbd", "slurmctld", "login", "node-1", "node-2", "node-3"]
    labels = services["node-3"].pop("labels")
    assert services["node-3"] == {
        "extends": {"file": str(BASE_FILE), "service": "node-1"},
        "hostname": "node-3",
        "environment": {"NODE_CPUS": "2", "NODE_MEMORY": "1024"},
        "cpus": 1,
        "mem_limit": "1024m",
        "memswap_limit": "1024m",
    }
    assert labels["of"] == services["db"]["labels"]["of"] == "all"
    assert Slice.model_validate(json.loads(labels[SLICE_LABEL])) == TWO
    assert "extends" not in services["node-2"]


def test_the_entrypoint_is_told_by_arguments_and_the_environment_stays_empty():
    services = with_arguments(overlay([ONE, ONE, TWO], None, {}))["services"]
    users = "USERS=${SLURMBED_USERS:-alice:1000 bob:1001}"  # Compose replaces it
    assert services["node-3"]["command"] == [
        "node",
        users,
        "NVIDIA_SMI=${SLURMBED_NVIDIA_SMI:-1}",
        "NODE_CPUS=1",
        "NODE_MEMORY=2048",
        "NODE_CPUS=2",
        "NODE_MEMORY=1024",
    ]
    assert "command" not in services["login"]  # the base file's
    assert "environment" not in json.dumps(services) + BASE_FILE.read_text().replace("an `environment`", "")


def test_gpus_of_the_host_are_reserved_by_their_numbers():
    services = services_of(*[with_gpus("2", "2", "3")] * 3)
    reserved = [{"driver": "nvidia", "device_ids": ["2", "3"], "capabilities": ["gpu"]}]
    for node in ("node-1", "node-2", "node-3"):
        assert services[node]["deploy"] == {"resources": {"reservations": {"devices": reserved}}}
        assert services[node]["environment"]["NODE_GRES"] == "gpu:2"
    assert services["slurmctld"]["environment"] == {"NODE_GRES": "gpu:2"}


def test_emulated_gpus_are_device_files_and_take_no_capability():
    services = services_of(with_gpus("emulated:2"))
    assert services["node-1"]["devices"] == ["/dev/null:/dev/emulated-gpu0", "/dev/null:/dev/emulated-gpu1"]
    assert services["node-1"]["environment"]["NODE_GRES"] == "gpu:emulated:2"
    assert not {"deploy", "cap_add"} & set(services["node-1"])


def test_with_slurmrestd_the_login_node_sees_its_socket():
    made = overlay([ONE, ONE], None, {"of": "all"}, selinux=True, rest=True)["services"]
    assert made["slurmrestd"] == {"labels": {"of": "all"}}
    socket = {"type": "volume", "source": "rest", "target": "/run/slurmrestd", "read_only": True}
    assert made["login"]["volumes"][-1] == socket
    assert not any(socket in made[name].get("volumes", ()) for name in ("slurmctld", "node-1"))


def test_with_containers_in_jobs_the_profile_is_where_users_processes_run_and_no_right_more():
    made = overlay([ONE] * 3, None, {}, cgroups=True, registry_port=5001)["services"]
    for name in ("login", "node-1", "node-3"):
        options = made[name]["security_opt"]
        assert [each.partition("=")[0] for each in options][-1] == "seccomp"
        assert made[name]["environment"]["REGISTRY_PORT"] == "5001"
        assert made[name]["volumes"][-1]["target"] == "/var/lib/container-images"
        assert not {"cap_add", "privileged"} & set(made[name])
    assert "writable-cgroups=true" in made["node-1"]["security_opt"]
    assert not any("security_opt" in made[name] for name in ("registry", "db", "slurmdbd", "slurmctld"))
    assert (
        "apparmor=unconfined"
        in overlay([ONE], None, {}, registry_port=1, apparmor=True)["services"]["login"]["security_opt"]
    )


def test_the_profile_refuses_the_kernels_wide_doors_and_allows_what_containers_take():
    profile = json.loads(SECCOMP.read_text())
    refused = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert {
        "bpf",
        "keyctl",
        "kexec_load",
        "init_module",
        "io_uring_setup",
        "userfaultfd",
        "open_by_handle_at",
    } <= refused
    assert not {"clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot"} & refused
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"


def test_one_node_leaves_the_second_out():
    assert services_of(ONE)["node-2"] == {"profiles": ["left-out"]}


def test_nothing_is_privileged_or_named_or_open_to_the_network():
    text = BASE_FILE.read_text()
    assert "privileged" not in text
    assert "container_name" not in text
    published = re.findall(r'ports: \["([^"]*)"', text)
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_nodes_with_cpus_of_their_own_have_what_slurm_binds_with():
    nodes = [ONE.model_copy(update={"own_cpus": own}) for own in ((0, 2), (3,))]
    services = services_of(*nodes)
    assert [(services[name]["cpuset"], services[name]["cap_add"]) for name in ("node-1", "node-2")] == [
        ("0,2", ["SYS_NICE"]),
        ("3", ["SYS_NICE"]),
    ]
    for name in ("slurmctld", "login", "node-1"):
        assert services[name]["environment"]["SLURM_CONF_LINES"] == "TaskPlugin=task/affinity"
    assert "environment" not in services["slurmdbd"]
    assert not {"cpuset", "cap_add"} & set(services_of(ONE)["node-1"])
    assert "SLURM_CONF_LINES" not in services_of(ONE)["node-1"]["environment"]
