"""A cluster's life: a node lost and back, growing and shrinking, stopping and starting, failing to start."""

import pytest

from conftest import NAME, NODES
from slurmbed.cluster import host
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import Settings
from slurmbed.engine.compose import Compose
from slurmbed.errors import NotReady, UsageError
from slurmbed.process import run


def names(cluster: Cluster) -> list[str]:
    return [node.name for node in cluster.slurm.nodes()]


def test_a_restarted_node_rejoins(cluster):
    before = cluster.compose.inspect("node-2")["State"]["StartedAt"]
    run(["docker", "restart", "--time", "2", cluster.compose.container_name("node-2")], timeout=60).check()
    cluster.readiness.wait_ready(NODES)
    assert cluster.compose.inspect("node-2")["State"]["StartedAt"] > before
    assert cluster.slurm.runner(["srun", "--nodelist=node-2", "hostname"]).check().stdout == "node-2\n"


def test_a_stopped_node_is_not_ready(cluster):
    container = cluster.compose.container_name("node-2")
    run(["docker", "stop", "--time", "2", container], timeout=60).check()
    try:
        with pytest.raises(NotReady, match="node-2: Exited"):
            cluster.readiness.wait_ready(NODES)
    finally:
        run(["docker", "start", container], timeout=60).check()
        cluster.readiness.wait_ready(NODES)


def test_a_killed_node_is_seen_down_and_its_job_runs_again(cluster):
    job_id = cluster.slurm.submit("--nodelist=node-2", "--output=/dev/null", "--wrap", "sleep 600")
    cluster.slurm.wait(job_id, 30, until=lambda job: job.state == "RUNNING")
    container = cluster.compose.container_name("node-2")
    run(["docker", "kill", container], timeout=60).check()
    try:
        again = cluster.slurm.wait(job_id, 120, until=lambda job: job.state == "PENDING")
        assert (again.id, again.state) == (job_id, "PENDING")
        (lost,) = [node for node in cluster.slurm.nodes() if node.name == "node-2"]
        assert lost.state == "DOWN"
    finally:
        run(["docker", "start", container], timeout=60).check()
        cluster.readiness.wait_ready(NODES)
    try:
        # Slurm holds a requeued job back for two minutes, lest it meet the same fault; "now" lifts that.
        cluster.slurm.runner(["scontrol", "update", f"JobId={job_id}", "StartTime=now"]).check()
        cluster.slurm.wait(job_id, 60, until=lambda job: job.state == "RUNNING")
        assert cluster.slurm.job(job_id).nodelist == "node-2"
    finally:
        cluster.slurm.cancel(job_id)
        cluster.slurm.wait(job_id, 60)


def test_scale_up_and_down_keeps_running_jobs(cluster):
    started = cluster.compose.inspect("node-1")["State"]["StartedAt"]
    job_id = cluster.slurm.submit("--nodelist=node-1", "--output=/dev/null", "--wrap", "sleep 600")
    cluster.slurm.wait(job_id, 30, until=lambda job: job.state == "RUNNING")
    try:
        Cluster(Settings(name=NAME, nodes="4"), print).scale()
        assert names(cluster) == ["node-1", "node-2", "node-3", "node-4"]
        spread = cluster.slurm.runner(["srun", "--nodes=3", "--exclude=node-1", "--label", "hostname"]).check().stdout
        assert sorted(spread.splitlines()) == ["0: node-2", "1: node-3", "2: node-4"]
        Cluster(Settings(name=NAME, nodes=str(NODES)), print).scale()
        assert names(cluster) == ["node-1", "node-2"]
        assert not [c for c in cluster.compose.containers() if c.service in ("node-3", "node-4")]
        assert cluster.slurm.job(job_id).state == "RUNNING"
        assert cluster.compose.inspect("node-1")["State"]["StartedAt"] == started
    finally:
        cluster.slurm.cancel(job_id)
        cluster.slurm.wait(job_id, 60)


def test_down_and_up_keep_accounting_jobs_and_homes(cluster):
    job_id = cluster.slurm.submit("--output=/dev/null", "--wrap", "echo kept >~/kept")
    cluster.slurm.wait_completed(job_id, 60)
    held = cluster.slurm.submit("--hold", "--output=/dev/null", "--wrap", "true")
    cluster.down()
    assert {c.state for c in cluster.compose.containers()} == {"exited"}
    again = Cluster(Settings(name=NAME), print)
    assert [node.name for node in again.up()] == ["node-1", "node-2"]
    rows = again.slurm.accounting(job_id)
    assert (rows[0].id, rows[0].state) == (job_id, "COMPLETED")
    assert again.slurm.job(held).state == "PENDING"
    again.slurm.cancel(held)
    assert again.slurm.runner(["cat", "/home/alice/kept"]).check().stdout == "kept\n"
    assert int(again.slurm.submit("--output=/dev/null", "--wrap", "true")) > int(held)


def test_nodes_that_are_there_are_not_made_anew_with_another_slice(cluster):
    with pytest.raises(UsageError, match="the nodes that are there have 2 CPUs and 1024 MiB"):
        Cluster(Settings(name=NAME, cpus="1"), print).up()
    Cluster(Settings(name=NAME, cpus="2"), print).plan()
    assert [(node.cpus, node.memory) for node in cluster.slurm.nodes()] == [(2, 1024)] * NODES


def test_a_dead_login_is_brought_back(cluster):
    run(["docker", "kill", cluster.compose.container_name("login")], timeout=60).check()
    assert [node.name for node in Cluster(Settings(name=NAME), print).up()] == ["node-1", "node-2"]


@pytest.fixture
def broken(image, monkeypatch):
    """Settings of a cluster whose containers cannot start: the job user's uid is taken by the user slurm."""
    monkeypatch.setattr(host, "job_uid", lambda workspace: 64030)
    name = f"{NAME}-broken"
    yield Settings(name=name)
    Compose(name).by_name("down", "--volumes", timeout=60).check()


def test_a_failed_start_says_why_and_leaves_nothing(broken):
    heard: list[str] = []
    with pytest.raises(NotReady, match="Restarting"):
        Cluster(broken, heard.append).up()
    said = "\n".join(heard)
    assert "UID 64030 is not unique" in said
    assert "removed what was started" in said
    assert Compose(broken.name).containers() == []
    for kind in ("volume", "network"):
        listed = run(["docker", kind, "ls", "--quiet", "--filter", f"name={broken.name}"], timeout=30)
        assert listed.check().stdout == ""


def test_retain_keeps_a_failed_start(broken):
    heard: list[str] = []
    with pytest.raises(NotReady):
        Cluster(Settings(name=broken.name, retain="1"), heard.append).up()
    assert Compose(broken.name).containers()
    assert f"make clean NAME={broken.name}" in "\n".join(heard)


def test_a_failed_start_keeps_the_volumes_of_a_cluster_that_was_there(broken):
    """Homes and accounting outlive containers that somebody removed."""
    name = f"{broken.name}_home"
    labels = (f"com.docker.compose.project={broken.name}", "com.docker.compose.volume=home", "org.slurmbed=cluster")
    run(["docker", "volume", "create", *(f"--label={label}" for label in labels), name], timeout=30).check()
    with pytest.raises(NotReady):
        Cluster(broken, print).up()
    assert name in Compose(broken.name).volumes()
