"""snakemake, on the login node."""

import pytest


@pytest.mark.client
def test_snakemake(follow, slurm_cluster):
    parts = follow("snakemake")[-2:]
    assert {*parts} <= {"node-1", "node-2"}
