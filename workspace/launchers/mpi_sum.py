"""The sum of distributed_sum.py, by MPI itself: mpi4py alone, no torch. No address and no port are needed.

    sbatch launchers/mpirun.sbatch launchers/mpi_sum.py
    sbatch launchers/pmix.sbatch launchers/mpi_sum.py

Ends with 1, and the reason, unless MPI and the launcher agree on every rank, the ranks are on all nodes of the job, and
the sums are right.
"""

import json
import sys
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import environment


def main():
    world = MPI.COMM_WORLD
    try:
        env = environment.read()
        environment.announce(env.record(""))
        prove(world, env)
    except ValueError as error:
        print(f"mpi_sum.py: error: {error}", file=sys.stderr, flush=True)
        world.Abort(1)  # ends the other ranks too: MPI would wait for them


def prove(world, env):
    """ValueError unless every number is right."""
    if (world.rank, world.size) != (env.rank, env.world_size):
        raise ValueError(
            f"{env.launcher} says rank {env.rank} of {env.world_size}, MPI says {world.rank} of {world.size}: start it "
            "by mpirun, or by srun with --mpi=pmix"
        )
    total, expected = world.allreduce(world.rank**2), (world.size - 1) * world.size * (2 * world.size - 1) // 6
    if total != expected:
        raise ValueError(f"the squares of {world.size} ranks add up to {total} on rank {world.rank}, not {expected}")
    nodes = {}
    for rank, host in world.allgather((env.rank, env.record("")["host"])):
        nodes.setdefault(host, []).append(rank)
    if env.job_nodes and len(nodes) != env.job_nodes:
        raise ValueError(f"the {world.size} ranks are on {len(nodes)} node(s), {nodes}, the job has {env.job_nodes}")
    if world.rank == 0:
        where = "; ".join(f"{host}: {ranks}" for host, ranks in nodes.items())
        print(f"{world.size} rank(s) on {len(nodes)} node(s): {where}; {MPI.Get_library_version().split(',')[0]}")
        print(json.dumps({"record": "sum", "world_size": world.size, "nodes": nodes}))
        print(f"1 sum(s) over {world.size} rank(s): all right", flush=True)


if __name__ == "__main__":
    main()
