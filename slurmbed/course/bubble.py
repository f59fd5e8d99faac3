"""`make bubble`: a job on the cluster measures how long the stages of a pipeline are idle; the result is drawn."""

from pathlib import Path

from rich.console import Console

from slurmbed.cluster.cluster import Cluster
from slurmbed.course.follow import complete, require_exclusive_workspace
from slurmbed.slurm.placement import parse_ranks, placement, require_separate_nodes


def bubble(cluster: Cluster, console: Console, nodes: int) -> Path:
    """Submit the job, follow it, print its table, draw its timeline; returns the picture's path.

    Raises:
        JobFailed: with state, exit code and last log lines.
        PlacementError: the log and Slurm disagree on where ranks ran, or ranks share a node.
    """
    require_exclusive_workspace(cluster)
    job_run, layout = complete(cluster, console, [f"--nodes={nodes}", "jobs/bubble.sbatch"])
    require_separate_nodes(placement(parse_ranks(job_run.log()), layout, job_run.job_id))
    measured = job_run.results("bubble.json")
    lines = [line for line in job_run.log().splitlines() if not line.startswith("{")]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    from slurmbed.course import figures  # it imports matplotlib, which takes half a second

    picture = figures.png(figures.bubble_figure(measured))
    path = cluster.write(f"runs/{job_run.job_id}/bubble.png", picture)
    console.print(f"picture: {path}", soft_wrap=True)
    return path
