"""`make bubble`: the stages of a pipeline at work and waiting, measured by a job on the cluster and drawn."""

from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from slurmbed.cluster.cluster import Cluster
from slurmbed.course.figures import png
from slurmbed.course.training import check_alone, complete, described
from slurmbed.slurm.placement import parse_ranks, placement, require_separate_nodes

COLORS = {"forward": "#9bb8d3", "backward": "#1f4e79"}
IDLE = "#f3e3d0"


def bubble(cluster: Cluster, console: Console, nodes: int) -> Path:
    """Submit the job, follow it, print its table, draw its timeline; returns the picture's path.

    Raises:
        JobFailed: with state, exit code and last log lines.
    """
    check_alone(cluster.name, cluster.workspace())
    files, layout = complete(cluster, console, [f"--nodes={nodes}", "jobs/bubble.sbatch"], described)
    require_separate_nodes(placement(parse_ranks(files.log()), layout, files.job_id))
    found = files.results("bubble.json")
    lines = [line for line in files.log().splitlines() if not line.startswith("{")]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    path = cluster.write(f"runs/{files.job_id}/bubble.png", png(figure(found)))
    console.print(f"picture: {path}", soft_wrap=True)
    return path


def figure(found: dict) -> Figure:
    """One step for each number of microbatches: a lane for each stage, time in ms from left to right.

    Args:
        found: bubble.json, as workspace/bubble.py writes it: ``rows`` of microbatches, theory and measured (shares of
            idle time), and ``spans``, by rank, of (kind, microbatch, start, end) in seconds.
    """
    rows, hosts = found["rows"], [rank["host"] for rank in found["placement"]]
    names = [f"stage {stage} on {host}" for stage, host in enumerate(hosts)]
    whole = Figure(figsize=(11, 1 + (0.55 + 0.36 * len(hosts)) * len(rows)), layout="constrained")
    for axes, row in zip(whole.subplots(len(rows), squeeze=False, sharex=True)[:, 0], rows, strict=True):
        first = min(start for lane in row["spans"] for _, _, start, _ in lane)
        last = max(end for lane in row["spans"] for *_, end in lane)
        for number, lane in enumerate(row["spans"]):
            axes.barh(number, 1000 * (last - first), color=IDLE)
            for kind, microbatch, start, end in lane:
                left, width = 1000 * (start - first), 1000 * (end - start)
                axes.barh(number, width, left=left, color=COLORS[kind], edgecolor="white", linewidth=0.5)
                dark = kind == "backward"
                label = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "black"}
                axes.text(left + width / 2, number, str(microbatch), clip_on=True, **label)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        count = f"{row['microbatches']} microbatch{'es' * (row['microbatches'] > 1)}"
        title = f"{count}: {row['measured']:.0%} idle, theory {row['theory']:.0%}"
        axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("ms since the step began; the numbers are those of the microbatches")
    patches = [axes.barh(0, 0, color=color) for color in (*COLORS.values(), IDLE)]
    whole.legend(patches, [*COLORS, "idle"], loc="outside upper right", ncols=3, frameon=False)
    return whole
