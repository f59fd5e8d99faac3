"""Power saving, as clouds use it: containers of nodes that Slurm asks for, and that go when they are idle."""

import pytest

from harness import clusters, engine
from harness.internals import ROOT
from harness.names import NAME
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until

OTHER = f"{NAME}-cloud"
CLOUD = ["node-2", "node-3", "node-4"]


@pytest.fixture(scope="module")
def cloud(slurm_start, tmp_path_factory):
    """clusters/cloud.yaml, with less patience."""
    folder = tmp_path_factory.mktemp("cloud")
    text = (ROOT / "clusters" / "cloud.yaml").read_text()
    (folder / "cloud.yaml").write_text(text.replace("SuspendTime=60", "SuspendTime=5"))
    workspace = clusters.copy_of_workspace(folder)
    with slurm_start("cloud", config=folder / "cloud.yaml", workspace=workspace) as cluster:
        yield cluster


def states(name: str) -> set[str]:
    return {engine.states(name)[service] for service in CLOUD}


def wait_for(condition, what: str, timeout: float = 300) -> None:
    def check() -> None:
        if not condition():
            raise Pending(str(engine.states(OTHER)))

    wait_until(check, what=what, timeout=timeout, interval=0.5)


def agents() -> int:
    """How many agents of the cluster run on this machine."""
    return run(["ps", "-eo", "args"], timeout=20).stdout.count(f"slurmbed.cluster.elastic {OTHER}\n")


def test_a_job_makes_nodes_come_and_idleness_makes_them_go(cloud):
    assert states(OTHER) == {"created"}
    assert engine.states(OTHER)["node-1"] == "running"
    job = cloud.slurm.run("--partition=cloud", "--nodes=3", "--wrap", "srun --label hostname", timeout=400)
    assert sorted(job.stdout.splitlines()) == [f"{rank}: {node}" for rank, node in enumerate(CLOUD)]
    wait_for(lambda: states(OTHER) == {"exited"}, "idle nodes go")
    assert engine.states(OTHER)["node-1"] == "running"


def test_nodes_come_again(cloud):
    """Another `up` changes nothing; a job for one node makes one come."""
    assert [node.name for node in cloud.up()] == ["node-1", *CLOUD]
    cloud.slurm.run("--partition=cloud", "--nodelist=node-3", "--wrap", "hostname", timeout=400)
    assert engine.states(OTHER)["node-2"] == "exited"


def test_the_agent_ends_with_the_cluster(cloud):
    cloud.clean()
    wait_for(lambda: agents() == 0, "the agent ends", timeout=120)
