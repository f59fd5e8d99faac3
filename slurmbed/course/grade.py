"""`make grade LESSON=3`: a job on the cluster checks the student's file, the exercise of a lesson."""

from rich.console import Console

from slurmbed.cluster.cluster import Cluster
from slurmbed.course import runs
from slurmbed.course.follow import require_exclusive_workspace
from slurmbed.course.runs import Run
from slurmbed.errors import SlurmbedError
from slurmbed.slurm.client import failure

FILES = {"3": "all_reduce", "4": "sampler", "6": "column_parallel", "ring": "ring", "containers": "layers"}
"""A lesson, by number or by the name of its page, to its file in exercises/; workspace/lessons/grade.py checks it."""
LONGEST = 600  # seconds; the job's own time limit ends it earlier


def grade(cluster: Cluster, console: Console, lesson: str) -> None:
    """Submit the job, wait for it, print what it found.

    Raises:
        SlurmbedError: the exercise is not done yet.
        JobFailed: the job ended before it printed a result.
    """
    require_exclusive_workspace(cluster)
    since = runs.now()
    job_id = cluster.slurm.submit("jobs/lesson.sbatch", "grade", lesson)
    file = cluster.workspace() / "exercises" / f"{FILES[lesson]}.py"
    console.print(f"job {job_id} checks {file}", soft_wrap=True, highlight=False)
    job = cluster.slurm.wait(job_id, LONGEST)
    log, log_file = (run := Run(cluster.workspace(), job_id, since)).log(), str(run.log_file)
    if f"\nlesson {lesson}: " not in f"\n{log}":
        raise failure(job, log, log_file)
    console.print(log, soft_wrap=True, highlight=False, markup=False, end="")
    if job.state != "COMPLETED":
        raise SlurmbedError(f"lesson {lesson} is not done yet", f"continue in {file}, then run this command again")
