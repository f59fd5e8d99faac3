"""Nodes with CPUs of their own, on a host that has them all: what is said of a program's CPUs is true."""

import re

import pytest

from harness import clusters, engine, internals
from harness.names import NAME

# Of a program: its node, the mask of the CPUs that it may use, their number, and whether it has Slurm's preloading.
SEEN = 'echo $SLURMD_NODENAME 0x$(taskset --pid $$ | sed "s/.* //") $(nproc) "${LD_PRELOAD:-none}"'
SAID = re.compile(r"cpu-bind=MASK - (\S+), task +\d+ +\d+ \[\d+\]: mask (\S+) set")
SYS_NICE = 23


@pytest.fixture(scope="module")
def bound(slurm_start, tmp_path_factory):
    """Two nodes of one CPU."""
    own = internals.cpus_to_assign(clusters.make_cluster(NAME))
    if own < 2:
        pytest.skip(f"two nodes with CPUs of their own take two CPUs; containers can be given {own} here")
    workspace = tmp_path_factory.mktemp("own")
    with slurm_start("own", nodes=2, cpus=1, memory="512M", workspace=workspace) as cluster:
        yield cluster


def test_a_program_slurm_and_the_engine_agree_on_cpus(bound):
    masks = {}
    for node in ("node-1", "node-2"):
        masks[node] = hex(1 << int(engine.inspect(bound, node)["HostConfig"]["CpusetCpus"]))
        capabilities = engine.execute(bound, node, ["sed", "-n", "s/^CapBnd:\t//p", "/proc/1/status"]).check().stdout
        assert int(capabilities, 16) >> SYS_NICE & 1
    assert len(set(masks.values())) == 2, "one of them is not CPU 0, as which Slurm knows it"
    done = bound.slurm.runner(["srun", "--nodes=2", "--cpu-bind=verbose", "bash", "-c", SEEN]).check()
    assert dict(SAID.findall(done.stderr)) == masks
    assert sorted(done.stdout.splitlines()) == [f"{node} {mask} 1 none" for node, mask in masks.items()]
