"""A rank under Lightning Fabric: it connects the ranks that srun started, then the program runs in that group.

srun python3 launchers/fabric_ranks.py train.py --parallel ddp; launchers/fabric.sbatch submits it.
"""

import os
import sys
from datetime import timedelta

import program
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import SLURMEnvironment
from lightning_fabric.strategies import DDPStrategy


def main():
    fabric = Fabric(
        accelerator="cuda" if torch.cuda.is_available() else "cpu",  # auto would take no GPU where Slurm gave one
        devices=int(os.environ.get("SLURM_NTASKS_PER_NODE", 1)),
        num_nodes=int(os.environ["SLURM_NNODES"]),
        strategy=DDPStrategy(
            # With nccl, gloo stays for what is on the CPU: a flag, an object.
            process_group_backend="cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            timeout=timedelta(seconds=60),
        ),
        # Named, so that a launch without srun ends with an error instead of as one process.
        plugins=[SLURMEnvironment()],
    )
    fabric.launch()
    program.run(sys.argv[1:])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
