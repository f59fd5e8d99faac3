from slurmbed import assert_separate_nodes


def test_each_rank_has_a_node_of_its_own(slurm, slurm_shared):
    job = slurm.sbatch("#!/bin/bash\nsrun python3 ranks.py", "--nodes=2", f"--output={slurm_shared}/log")
    job.wait()
    assert_separate_nodes(job)
