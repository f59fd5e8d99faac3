"""Tests of launchers are on the pod, unless a file says otherwise."""

import pytest


@pytest.fixture
def slurm_cluster(pod):
    return pod


@pytest.fixture
def slurm(slurm_cluster):
    return slurm_cluster.slurm
