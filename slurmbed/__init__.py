"""A real multi-node Slurm cluster in containers on one machine."""
