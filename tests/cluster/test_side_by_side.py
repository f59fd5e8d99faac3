"""Four clusters on one engine, each with a job at the same time; nothing is left of any."""

from contextlib import ExitStack

from harness import engine

# Ends when the test has seen that it runs, beside the others, in a folder that only its own cluster sees.
JOB = """#!/bin/bash
while [ ! -e seen ]; do sleep 0.2; done
srun --label sh -c "hostname; cat who"
"""


def test_four_clusters_run_a_job_each_at_once_and_go_away_cleanly(slim_image, slurm_start, tmp_path_factory):
    with ExitStack() as stack:
        clusters, folders = [], []
        for number in range(4):
            folder, own = tmp_path_factory.mktemp(f"shared-{number}"), tmp_path_factory.mktemp(f"workspace-{number}")
            (folder / "who").write_text(f"cluster {number}\n")
            folder.chmod(0o755)  # if root runs the tests, jobs do not
            settings = {"flavor": "slim", "nodes": 1, "cpus": 1, "memory": "512M", "workspace": own, "mount": (folder,)}
            clusters.append(stack.enter_context(slurm_start(f"side-{number}", **settings)))
            folders.append(folder)
        pairs = zip(clusters, folders, strict=True)
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
    assert [engine.left(cluster.name) for cluster in clusters] == [[]] * 4
