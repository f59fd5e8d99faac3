"""Clusters side by side on one engine, each with a job at the same time; nothing is left of any."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from harness import clusters, engine, internals
from harness.names import NAME

# Ends when the test has seen that it runs, beside the others, in a folder that only its own cluster sees.
JOB = """#!/bin/bash
while [ ! -e seen ]; do sleep 0.2; done
srun --label sh -c "hostname; cat who"
"""


def test_four_clusters_run_a_job_each_at_once_and_go_away_cleanly(slim_image, slurm_start, tmp_path_factory):
    with ExitStack() as stack:
        started, folders = [], []
        for number in range(4):
            folder, own = tmp_path_factory.mktemp(f"shared-{number}"), tmp_path_factory.mktemp(f"workspace-{number}")
            (folder / "who").write_text(f"cluster {number}\n")
            folder.chmod(0o755)  # if root runs the tests, jobs do not
            settings = {"flavor": "slim", "nodes": 1, "cpus": 1, "memory": "512M", "workspace": own, "mount": (folder,)}
            started.append(stack.enter_context(slurm_start(f"side-{number}", **settings)))
            folders.append(folder)
        pairs = zip(started, folders, strict=True)
        jobs = [cluster.slurm.sbatch(JOB, f"--chdir={folder}", "--output=/scratch/%j.log") for cluster, folder in pairs]
        for job in jobs:
            job.wait_for_state("RUNNING")
        assert [job.state for job in jobs] == ["RUNNING"] * 4
        for folder in folders:
            (folder / "seen").touch()
        for number, job in enumerate(jobs):
            job.wait()
            assert job.stdout == f"0: node-1\n0: cluster {number}\n"
            assert job.placement == {0: "node-1"}
    assert [engine.left(cluster.name) for cluster in started] == [[]] * 4


def test_clusters_with_containers_that_start_at_once_have_registries_of_their_own(slim_image, workspace, monkeypatch):
    """Both want the port that is free when they look."""
    internals.require_containers_in_jobs(slim_image)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        internals.want_registry_port(monkeypatch, probe.getsockname()[1])
    settings = {"flavor": "slim", "nodes": 1, "cpus": 1, "memory": "512M", "containers": True, "workspace": workspace}
    both = [clusters.make_cluster(f"{NAME}-port-{number}", **settings) for number in range(2)]
    try:
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(lambda cluster: cluster.up(), both))
        ports = [engine.port(cluster, "registry", 5000) for cluster in both]
    finally:
        for cluster in both:
            cluster.clean()
    assert len(set(ports)) == 2
