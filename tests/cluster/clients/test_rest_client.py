"""A client of Slurm's REST interface, made from its description."""

import pytest


@pytest.fixture
def slurm_cluster(slurm_start):
    with slurm_start("rest-client", nodes=2, memory="1G", rest=True) as cluster:
        yield cluster


@pytest.mark.client
def test_aind_slurm_rest_v2(follow):
    job, *nodes = follow("aind-slurm-rest-v2")
    assert job.split()[1:] == ["COMPLETED"]
    assert nodes == ["node-1", "node-2"]
