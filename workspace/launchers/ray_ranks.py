"""Ray starts the ranks, as tasks: exactly RANKS_PER_NODE on each node of the job, in the order of its nodes.

python3 launchers/ray_ranks.py train.py --parallel ddp, in a job whose nodes run Ray; launchers/ray.sbatch submits it.
"""

import os
import socket
import sys
import time

import program
import ray

WAIT = 60  # seconds for the head, then for all nodes


def main():
    nodes, per_node = int(os.environ["SLURM_NNODES"]), int(os.environ["RANKS_PER_NODE"])
    address = os.environ["RAY_ADDRESS"]
    wait_for(lambda: answers(address), f"nothing answers at {address}: what does the head's Ray say above?")
    ray.init(address=address, log_to_driver=False)
    names = [f"slurm_node_{node}" for node in range(nodes)]

    def missing():
        return [name for name in names if ray.cluster_resources().get(name, 0) < per_node]

    wait_for(lambda: not missing(), lambda: f"Ray does not run on all of {nodes} nodes; there is no {missing()}")
    # max_retries: Ray starts a task that died again, but the other ranks do not wait for it.
    # num_gpus: Ray shows a rank its own GPUs only, and with 0 none.
    gpus = min(1, int(os.environ.get("SLURM_GPUS_ON_NODE", 0)) / per_node)
    task = ray.remote(max_retries=0, num_cpus=1, num_gpus=gpus)(rank)
    ranks = [
        task.options(resources={name: 1}).remote(node * per_node + local, nodes * per_node, local, sys.argv[1:])
        for node, name in enumerate(names)
        for local in range(per_node)
    ]
    try:
        while ranks:
            ended, ranks = ray.wait(ranks)
            ray.get(ended)  # raises if the rank failed, while others may still wait for it
    except ray.exceptions.RayError as error:
        sys.exit(f"ray_ranks.py: error: {error}")


def rank(number, world_size, local_rank, arguments):
    # Past Ray, which brings the ranks' lines to this script late, and the last ones perhaps never.
    output = os.open(os.environ["RANK_OUTPUT"], os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    program.be_rank(number, world_size, local_rank, int(os.environ["RANKS_PER_NODE"]), os.environ["MASTER_ADDR"])
    program.run(arguments)


def wait_for(condition, otherwise):
    deadline = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"ray_ranks.py: error: after {WAIT} s {otherwise() if callable(otherwise) else otherwise}")
        time.sleep(0.5)


def answers(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
