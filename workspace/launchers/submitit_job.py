"""submitit starts the ranks: a Python function, sent to every task of a Slurm job. On the login node:

python3 launchers/submitit_job.py --nodes 2 --ranks 8 train.py --parallel ddp --steps 20

from the folder of train.py. Ends when the job does, with its output.
"""

import argparse
import os
import sys
import time

import cloudpickle
import program
import submitit

POLL = 2  # seconds; submitit's own wait asks Slurm ever less often, and would learn of a killed job minutes later

cloudpickle.register_pickle_by_value(program)  # a node's Python does not find modules of this folder


def rank(arguments):
    os.environ["MASTER_PORT"] = str(program.port())  # submitit's own may be one that outgoing connections use
    # Not set_cuda_visible_devices: it writes the local rank there, even if Slurm gave this job the GPUs 4 to 7. And
    # overwrite: a MASTER_ADDR that was set on the login node came along.
    submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    program.run(arguments)


def main():
    options = parse()
    slurm = executor(nodes=options.nodes, tasks_per_node=options.ranks, gpus_per_node=options.ranks)
    job = slurm.submit(rank, options.program)
    print(f"submitted job {job.job_id}", flush=True)
    finish(job, options.wait)
    print(job.stdout())
    if error := failure(job):
        sys.exit(f"submitit_job.py: error: job {job.job_id}: {error}")


def parse():
    parser = argparse.ArgumentParser(usage="%(prog)s [--nodes N] [--ranks N] [--wait SECONDS] [PROGRAM ARGUMENTS...]")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=8, help="ranks on each node, each with a GPU")
    parser.add_argument("--wait", type=int, default=600, help="seconds for the job, its time in the queue included")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM ARGUMENTS")
    return parser.parse_args()


def executor(**parameters):
    # Shared by all nodes: the function goes there as a pickle, output and results come back. A new one for each
    # submission, as submitit takes a result that an older job of the same id left for this one's.
    folder = f"runs/submitit/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    slurm = submitit.AutoExecutor(folder=folder, cluster="slurm")
    slurm.update_parameters(
        timeout_min=20,
        cpus_per_task=1,
        # submitit's srun would leave the other ranks waiting for one that died, and, since Slurm 22.05, not pass
        # --cpus-per-task on.
        slurm_srun_args=["--kill-on-bad-exit=1", "--cpus-per-task=1"],
        **parameters,
    )
    return slurm


def finish(job, seconds):
    """Wait until the job is over; cancel it after so many seconds."""
    deadline = time.monotonic() + seconds
    while not job.done():
        if time.monotonic() > deadline:
            job.cancel()
            sys.exit(f"job {job.job_id} was {job.state} after {seconds} s, and is cancelled; --wait N waits longer")
        time.sleep(POLL)
        job.get_info(mode="force")


def failure(job):
    """The exception of a rank that failed, with its traceback; None if all went well."""
    ranks = [job.task(number) for number in range(job.num_tasks)]
    # Those that Slurm ended for it left no result, and submitit waits 15 s for each: the others first.
    ranks.sort(key=lambda rank: not rank.paths.result_pickle.exists())
    return next((error for rank in ranks if (error := rank.exception())), None)


if __name__ == "__main__":
    main()
