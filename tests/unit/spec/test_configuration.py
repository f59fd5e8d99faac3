"""A configuration file: what is wrong with its line, what Slurm, Compose and sacctmgr are given of it."""

from pathlib import Path

import pytest

from slurmbed.cluster.host import Host
from slurmbed.cluster.plan import make_plan
from slurmbed.cluster.settings import Settings
from slurmbed.engine.client import EngineInfo
from slurmbed.engine.overlay import overlay
from slurmbed.engine.snapshot import Snapshot
from slurmbed.errors import UsageError
from slurmbed.project import ROOT
from slurmbed.spec import accounts, slurm_conf
from slurmbed.spec.load import load
from slurmbed.spec.model import ClusterSpec
from slurmbed.spec.slices import Slice, slices_of_spec

LAPTOP = Host(cpus=8, memory=8192)
INFO = EngineInfo("ID", 8, 8192, "/var/lib/docker", True, True, ("runc",))
ONE = Slice(cpus=1, memory=512, cpu_limit=1, memory_limit=512)
SHIPPED = sorted((ROOT / "clusters").glob("*.yaml"))


def read(path: Path, *gpu_names: str) -> ClusterSpec:
    """The file as read on a machine with these GPUs."""
    return load(path, lambda: gpu_names)


@pytest.fixture
def write(tmp_path):
    """Write a configuration file; its path."""

    def write(text: str) -> Path:
        file = tmp_path / "cluster.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture(scope="module")
def campus() -> ClusterSpec:
    return read(ROOT / "clusters" / "campus.yaml")


GROUP = "nodes:\n  - name: cpu\n"  # lines 1 and 2
MISTAKES = {
    "    cpuz: 3": "3: nodes[0].cpuz: unknown key; did you mean cpus?",
    "    zip: 3": "3: nodes[0].zip: unknown key; known: name, count, cpus, sockets, cores, threads, memory, gres, f",
    "partition: []": "3: partition: unknown key; did you mean partitions?",
    "    count: 0": "3: nodes[0].count: Input should be greater than or equal to 1 (it is '0')",
    "    count: 2\n    count: 3": "4: count is given twice",
    "    memory: lots": "3: nodes[0].memory: 'lots' is not an amount of memory: write 2048 (MiB), 512M or 2G",
    "    gres: gpu:h100": "3: nodes[0].gres: 'gpu:h100': write gpu:8, gpu:h100:8 or gpu:emulated:h100:8, up to 16",
    "    gres: gpu:h100:17": "3: nodes[0].gres: 'gpu:h100:17': write gpu:8,",
    "    features: [cpu]": "3: nodes[0].features[0]: cpu is a feature of all nodes of the group cpu",
    "  - name: node-1": "3: nodes[1].name: node-1 means something else to Slurm",
    "  - name: node": "3: nodes[1].name: node means something else to Slurm",
    "  - count: 2": "3: nodes[1].name: missing",
    "  - {name: big}\n  - {name: cpu}": "4: nodes[2].name: cpu is given twice",
    "  - {name: big}\npartitions:\n  - {name: a, nodes: [cpu]}": "3: nodes[1].name: no partition has the nodes of big",
    "partitions:\n  - name: a\n    nodes: [cpu,\n     gpu]": "6: partitions[0].nodes[1]: there is no node group gpu",
    "partitions:\n  - {name: a, nodes: cpu}": "4: partitions[0].nodes: expected a list, like [a, b]",
    "partitions:\n  - {name: a, nodes: [cpu], default: yes}\n  - {name: b, nodes: [cpu], default: yes}": (
        "5: partitions[1].default: a is the default partition already"
    ),
    "partitions:\n  - {name: Default, nodes: [cpu]}": "4: partitions[0].name: 'Default' is not a partition's name",
    "partitions:\n  - {name: 'a,b', nodes: [cpu]}": "4: partitions[0].name: 'a,b' is not a partition's name",
    "partitions:\n  - {name: a, nodes: [cpu], max_time: soon}": "4: partitions[0].max_time: 'soon' is not a time",
    "qos:\n  - {name: a, limits: {MaxWal: 3}}": "4: qos[0].limits.MaxWal: unknown key; did you mean MaxWall?",
    "qos:\n  - {name: a, limits: {GrpTRES: cpu=}}": "4: qos[0].limits.GrpTRES: 'cpu=' is not a limit",
    "qos:\n  - {name: a, preempts: [b]}": "4: qos[0].preempts[0]: there is no QOS b; there are: a",
    "qos:\n  - {name: a, preempts: [a]}": "4: qos[0].preempts: a cannot preempt itself",
    "qos: [{name: a, preempts: [b]}, {name: b}]\npartitions:\n  - {name: c, nodes: [cpu], preempt_mode: cancel}": (
        "5: partitions[0].preempt_mode: this file preempts by QOS"
    ),
    "qos:\n  - {name: ready}": "4: qos[0].name: ready is slurmbed's own",
    "accounts:\n  - {name: a, users: [carol]}": "4: accounts[0].users[0]: there is no user carol; there are: alice, b",
    "users:\n  - {name: carol, sudo: true}": "4: users[0].sudo: unknown key",
    "users:\n  - {name: carol, uid: 0}": "4: users[0].uid: Input should be greater than or equal to 1000 (it is '0')",
    "users:\n  - {name: a, uid: 2000}\n  - name: b\n    uid: 2000": "6: users[1].uid: 2000 is that of a already",
    "users:\n  - {name: a}\n  - {name: a}": "5: users[1].name: a is given twice",
    "users:\n  - {name: slurm}": "4: users[0].name: slurm is a user of the system",
    "users:\n  - {name: a, account: b}": "4: users[0].account: there is no account b; there are: class",
    "users:\n  - name: a\n    keys:\n      - 'no key'": "6: users[0].keys[0]: not a public key",
    "users: []": "3: users: List should have at least 1 item",
    "accounts:\n  - {name: a, parent: b}": "4: accounts[0].parent: unknown parent account b; a parent comes before",
    "accounts:\n  - {name: a, parent: b}\n  - {name: b}": "4: accounts[0].parent: unknown parent account b; a parent",
    "slurm_conf:\n  - KillWait=5\n  - clustername=x": "5: slurm_conf[1]: clustername is set by slurmbed itself",
    "slurm_conf:\n  - KillWait 5": "4: slurm_conf[0]: 'KillWait 5' is not a line of slurm.conf: write Key=value",
    "mounts:\n  - {host: /no/such, container: /data}": "4: mounts[0].host: /no/such: no such folder",
    "mounts:\n  - {host: ., container: /etc/slurm}": "4: mounts[0].container: /etc/slurm is a system folder",
    "  - {name: b, cpus: 7, sockets: 2, cores: 4}": "3: nodes[1].cpus: 7, but sockets, cores and threads make 8",
    "  - {name: b, sockets: 64, cores: 64}": "3: nodes[1]: sockets, cores and threads make 4096 CPUs; at most 1024",
    "hooks: /no/such": "3: hooks: /no/such: no such folder",
    "slurm_conf: [Epilog=/etc/x]": "3: slurm_conf[0]: Epilog is set by slurmbed itself",
    "mounts:\n  - {host: ., container: /opt}": "4: mounts[0].container: /opt is a system folder",
    "mounts:\n  - {host: ., container: /data/../etc}": "4: mounts[0].container: /data/../etc is a system folder",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named_with_file_and_line(write, text):
    path = write(GROUP + text)
    with pytest.raises(UsageError) as refused:
        read(path)
    (line,) = refused.value.reason.splitlines()
    assert line.startswith(f"{path}:{MISTAKES[text]}")


def test_all_mistakes_are_named_at_once(write):
    with pytest.raises(UsageError, match=r"yaml:3: (.|\n)*yaml:4: "):
        read(write(f"{GROUP}    cpus: x\n    memory: y\n"))


@pytest.mark.parametrize(("text", "reason"), [("a:\n  [1", "yaml:2: not YAML"), ("", ":1: not a cluster")])
def test_what_is_no_mapping(write, text, reason):
    with pytest.raises(UsageError, match=reason):
        read(write(text))


def test_no_file():
    with pytest.raises(UsageError, match=r"/no/such: No such file or directory\n.*clusters/laptop.yaml"):
        read(Path("/no/such"))


def test_times_and_words_stay_as_they_are_written(write):
    """To YAML's usual loader 1:30:00 is the number 5400, and on is true."""
    spec = read(write(f"{GROUP}partitions:\n  - {{name: on, nodes: [cpu], max_time: 1:30:00}}"))
    assert (spec.partitions[0].name, spec.partitions[0].max_time) == ("on", "1:30:00")


def test_a_mount_starts_where_the_file_is(write, tmp_path):
    (tmp_path / "data").mkdir()
    spec = read(write(f"{GROUP}mounts:\n  - {{host: data, container: /data, read_only: true}}"))
    mount = {"type": "bind", "source": str(tmp_path / "data"), "target": "/data", "read_only": True}
    mount["bind"] = {"create_host_path": False}
    services = overlay([ONE], spec, {})["services"]
    assert services["node-1"]["volumes"] == services["login"]["volumes"] == [mount]
    assert "volumes" not in services["slurmctld"]


def test_hooks_come_beside_the_clusters_own(write, tmp_path):
    scripts = [tmp_path / "mine" / name for name in ("prolog.d/a", "job_submit.lua")]
    for script in scripts:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch(0o755)
    path = write(f"{GROUP}hooks: mine")
    lines = slurm_conf.lines(read(path))
    assert [line for line in lines if line.startswith("Prolog=")] == [
        "Prolog=/etc/slurm/prolog.d/*",
        "Prolog=/etc/slurm/hooks/prolog.d/*",
    ]
    assert "JobSubmitPlugins=lua" in lines
    mount = {"type": "bind", "source": str(tmp_path / "mine"), "target": "/etc/slurm/hooks", "read_only": True}
    mount["bind"] = {"create_host_path": False}
    services = overlay([ONE], read(path), {})["services"]
    assert services["node-1"]["volumes"] == services["slurmctld"]["volumes"] == [mount]
    scripts[0].chmod(0o644)
    with pytest.raises(UsageError, match=r"prolog\.d/a is not a program: chmod \+x"):
        read(path)
    scripts[0].rename(tmp_path / "mine" / "Prolog")
    with pytest.raises(UsageError, match=r"mine/Prolog is none of prolog\.d, task_prolog\.d, epilog\.d, job_submit"):
        read(path)


def test_a_group_may_have_a_topology(write):
    pair = "  - {name: b, sockets: 2, cores: 4, threads: 2, memory: 1G}\n  - {name: c, cpus: 8, sockets: 2}\n"
    *_, b, c = slices_of_spec(read(write(GROUP + pair)), LAPTOP, 3, {})
    assert b.record.startswith("CPUs=16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=1024")
    assert c.record.startswith("CPUs=8 Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 ")
    assert overlay([b], None, {})["services"]["node-1"]["environment"]["NODE_TOPOLOGY"] == b.topology


def test_partitions_replace_main(campus):
    lines = slurm_conf.lines(campus)
    assert [line for line in lines if line.startswith(("NodeSet=", "PartitionName="))] == [
        "NodeSet=cpu Feature=cpu",
        "NodeSet=gpu Feature=gpu",
        "PartitionName=cpu Nodes=cpu State=UP MaxTime=1-00:00:00 Default=YES DefaultTime=1:00:00",
        "PartitionName=gpu Nodes=gpu State=UP MaxTime=12:00:00 DefaultTime=1:00:00",
        "PartitionName=debug Nodes=cpu,gpu State=UP MaxTime=15:00 DefaultTime=15:00 PriorityTier=10",
    ]
    assert {"PreemptType=preempt/qos", "PreemptMode=REQUEUE", "DefMemPerCPU=250"} <= set(lines)
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:a100" in lines


def test_partitions_preempt_by_their_tier(write):
    text = (
        "partitions:\n  - {name: a, nodes: [cpu], priority_tier: 2}\n"
        "  - {name: b, nodes: [cpu], preempt_mode: requeue, default: true}"
    )
    lines = slurm_conf.lines(read(write(GROUP + text)))
    assert "PreemptType=preempt/partition_prio" in lines
    assert [line.rpartition(" ")[2] for line in lines if "PartitionName" in line] == [
        "PreemptMode=OFF",
        "PreemptMode=REQUEUE",
    ]
    assert [line.split()[0] for line in lines if " Default=YES " in line] == ["PartitionName=b"]
    assert not any("Enforce" in line for line in lines)


def test_a_line_of_the_users_stands_instead_of_ours(write):
    text = "qos: [{name: a, preempts: [b]}, {name: b}]\nslurm_conf: [preemptmode=SUSPEND]"
    lines = slurm_conf.lines(read(write(GROUP + text)))
    assert [line for line in lines if line.lower().startswith("preempt")] == [
        "PreemptType=preempt/qos",
        "preemptmode=SUSPEND",
    ]


def test_qos_and_accounts_become_sacctmgrs_words(campus):
    words = [" ".join(each) for each in accounts.qos_commands(campus, {"normal"})]
    assert words == [
        "add qos ready",
        "add qos preemptible",
        "modify qos name=ready set Priority=0 Preempt= PreemptMode=cluster GraceTime=0"
        " MaxJobsPerUser=1 MaxTRESPerJob=gres/gpu=0 MaxWall=1",
        "modify qos name=normal set Priority=100 Preempt=preemptible PreemptMode=cluster GraceTime=0"
        " MaxTRESPerUser=gres/gpu=2 MaxWall=12:00:00",
        "modify qos name=preemptible set Priority=0 Preempt= PreemptMode=requeue GraceTime=20",
    ]
    there = {"class|alice", "class|bob", "physics|alice"}
    words = [" ".join(each) for each in accounts.account_commands(campus, {"physics"})]
    assert "add account physics parent=root" not in words
    assert "modify account name=physics set QOS=normal,preemptible,ready DefaultQOS=normal" in words
    assert words[-1] == "modify account name=biology set fairshare=40"
    assert [" ".join(each) for each in accounts.user_commands(campus, there)] == [
        "add user alice account=biology",
        "modify user name=alice set DefaultAccount=physics",
        "delete user name=alice account=class",
        "add user bob account=biology",
        "modify user name=bob set DefaultAccount=biology",
        "delete user name=bob account=class",
    ]


def test_users_of_the_file_are_those_of_the_cluster(write):
    users = "users:\n  - name: ann\n  - {name: carol, uid: 1001, keys: [ssh-ed25519 AAAA me]}\n  - {name: dan}"
    spec = read(write(f"{GROUP}{users}\n  - {{name: eve, account: lab}}\naccounts: [{{name: lab, users: [dan]}}]"))
    words = [" ".join(each) for each in accounts.user_commands(spec, {"class|alice", "class|ann"})]
    assert words == [
        "delete user name=alice",
        "add user carol account=class",
        "add user dan account=lab",
        "modify user name=dan set DefaultAccount=lab",
        "add user eve account=lab",
        "modify user name=eve set DefaultAccount=lab",
    ]
    made = make_plan(Settings(name="c"), spec, Snapshot("c", INFO, (), (), {}), LAPTOP)
    uid = made.choices.job_uid
    assert made.uids["ann"] == uid
    assert made.uids["carol"] == 1001
    assert len(set(made.uids.values())) == 4


def test_each_node_is_as_its_group_and_declares_the_groups_before(campus):
    slices = slices_of_spec(campus, LAPTOP, 4, {})
    assert [(part.cpus, part.memory, str(part.gpus), part.features) for part in slices] == [
        (2, 512, "0", ("cpu",)),
        (2, 512, "0", ("cpu",)),
        (8, 2048, "emulated:a100:4", ("gpu", "nvlink")),
        (8, 2048, "emulated:a100:4", ("gpu", "nvlink")),  # one more than the file says is like the last
    ]
    services = overlay(slices, campus, {})["services"]
    assert services["node-2"]["environment"]["NODES_BEFORE"] == ""
    for node in ("node-3", "node-4"):
        assert services[node]["environment"]["NODES_BEFORE"] == "2 CPUs=2 RealMemory=512 Feature=cpu"
        assert services[node]["environment"]["NODE_FEATURES"] == "gpu,nvlink"
    assert services["slurmctld"]["environment"]["NODE_GRES"] == "gpu:a100:4"


def test_slurmctld_knows_the_most_of_each_type(write):
    text = "nodes:\n" + "".join(
        f"  - {{name: g{i}, gres: gpu:{word}}}\n" for i, word in enumerate(("a:2", "b:1", "a:4"))
    )
    spec = read(write(text))
    services = overlay(slices_of_spec(spec, LAPTOP, 3, {}), spec, {})["services"]
    assert services["slurmctld"]["environment"]["NODE_GRES"] == "gpu:a:4,gpu:b:1"


def test_a_mere_number_of_gpus_is_emulated_where_there_are_none_and_has_company_without_a_type(write):
    path = write("nodes:\n  - {name: a, gres: gpu:2}\n  - name: b\n    gres: gpu:1\n  - {name: c, gres: gpu:h100:8}")
    assert [str(group.gpus) for group in read(path).nodes] == ["emulated:2", "emulated:1", "emulated:h100:8"]
    with pytest.raises(UsageError, match=r"yaml:2: .*all GPUs or for none: gpu:TYPE:2\n.*yaml:4: .*gpu:TYPE:1$"):
        read(path, *["NVIDIA H200"] * 4)


def test_memory_that_a_group_leaves_open_is_shared_out(write):
    spec = read(write("nodes:\n  - {name: a, memory: 2G}\n  - {name: b, count: 2}"))
    assert [part.memory for part in slices_of_spec(spec, LAPTOP, 3, {})] == [2048, 2048, 2048]


def test_nodes_beyond_the_files_take_what_memory_is_left(write):
    spec = read(write("nodes:\n  - {name: a, count: 2}"))
    there = dict(enumerate(slices_of_spec(spec, LAPTOP, 2, {}), 1))
    assert [part.memory for part in slices_of_spec(spec, LAPTOP, 3, there)] == [3072, 3072, 2048]
    assert [part.memory for part in slices_of_spec(spec, LAPTOP, 4, there)] == [3072, 3072, 1024, 1024]


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("count: 3, memory: 3G", "3 nodes have 9216 MiB; the host has 8192 MiB"),
        ("cpus: 64, memory: 1G", "a node of the group a: 1024 MiB for a node of 64 CPUs: less than 64 MiB per CPU"),
        ("memory: 9G", "a node of the group a: .*9216 MiB; the host has 8192 MiB"),
    ],
)
def test_what_does_not_fit_on_the_host(write, group, reason):
    spec = read(write(f"nodes:\n  - {{name: a, {group}}}"))
    with pytest.raises(UsageError, match=reason):
        slices_of_spec(spec, LAPTOP, spec.size, {})


def test_a_group_offers_a_cpu_for_each_gpu(write):
    spec = read(write("nodes:\n  - {name: a, gres: gpu:16}\n  - {name: b, cpus: 1, gres: gpu:16}"))
    assert [part.cpus for part in slices_of_spec(spec, LAPTOP, 2, {})] == [16, 1]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_clusters_are_emulated_where_there_are_such_gpus_too(path: Path):
    spec = read(path, "NVIDIA H100 80GB HBM3", "NVIDIA A100")
    assert {part.gpu_ids for part in slices_of_spec(spec, LAPTOP, spec.size, {})} == {()}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_clusters_fit_on_a_laptop_and_come_back_from_their_label(path: Path):
    spec = read(path)
    assert len(slices_of_spec(spec, LAPTOP, spec.size, {})) == spec.size
    assert ClusterSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True, by_alias=True)) == spec


def test_dollars_reach_slurm_as_they_are(write):
    spec = read(write(f"{GROUP}slurm_conf: ['TmpFS=/tmp/$HOME']"))
    slurmctld = overlay([ONE], spec, {"label": "a $HOME"})["services"]["slurmctld"]
    assert slurmctld["environment"]["SLURM_CONF_LINES"].endswith("TmpFS=/tmp/$$HOME")
    assert slurmctld["labels"] == {"label": "a $$HOME"}
