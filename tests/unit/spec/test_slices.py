"""What each node gets of the host, and one-line refusals that say what to do."""

import pytest

from slurmbed.cluster.host import Host
from slurmbed.errors import UsageError
from slurmbed.spec.slices import Slice, plain_slices, slice_for, with_own_cpus

LAPTOP = Host(cpus=8, memory=16384)


def both(cpus: int, memory: int, cpu_limit: int | None = None) -> Slice:
    """A container has more memory than its jobs are given."""
    limit = cpus if cpu_limit is None else cpu_limit
    return Slice(cpus=cpus, memory=memory, cpu_limit=limit, memory_limit=memory + 256)


def test_slices_share_the_host_out():
    assert slice_for(LAPTOP, 2) == both(4, 6144)
    assert slice_for(LAPTOP, 64) == both(1, 192)


def test_more_cpus_may_be_offered_than_there_are_but_are_not_given():
    assert slice_for(LAPTOP, 2, cpus=32) == both(32, 6144, cpu_limit=8)


def test_a_node_offers_the_least_cpus_unless_told_otherwise():
    assert slice_for(LAPTOP, 2, least_cpus=16) == both(16, 6144, cpu_limit=8)
    assert slice_for(LAPTOP, 2, least_cpus=2).cpus == 4
    assert slice_for(LAPTOP, 2, cpus=1, least_cpus=16).cpus == 1
    with pytest.raises(UsageError, match=r"512 MiB for a node of 16 CPUs(.|\n)*fewer nodes, CPUs or GPUs"):
        slice_for(LAPTOP, 2, memory=512, least_cpus=16)


def test_a_host_without_limits_gets_slices_without():
    rootless = Host(cpus=8, memory=16384, limits_cpus=False, limits_memory=False)
    assert slice_for(rootless, 2) == Slice(cpus=4, memory=6144)


def test_new_nodes_share_what_the_old_ones_leave():
    old = {1: both(4, 6144), 2: both(4, 6144)}
    slices = plain_slices(LAPTOP, 8, old)
    assert slices[:2] == [old[1], old[2]]
    assert {part.memory for part in slices[2:]} == {(16384 - 2 * 6144) // 6}
    with pytest.raises(UsageError, match="less than 64 MiB per CPU"):
        plain_slices(LAPTOP, 8, {1: both(1, 16300)})


def test_nodes_that_are_there_keep_their_slices():
    old = {1: both(4, 2048), 2: both(4, 2048), 3: both(4, 2048)}
    assert plain_slices(LAPTOP, 2, old, cpus=4, memory=2048) == [old[1], old[2]]
    for asked in ({"cpus": 2}, {"memory": 1024}):
        with pytest.raises(UsageError, match=r"have 4 CPUs and 2048 MiB(.|\n)*make clean"):
            plain_slices(LAPTOP, 4, old, **asked)


def test_more_memory_than_there_is_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"2 nodes is 18432 MiB; the host has 16384 MiB(.|\n)*MEMORY=6144M"):
        slice_for(LAPTOP, 2, memory=9 * 1024)
    with pytest.raises(UsageError, match="100 MiB for a node of 4 CPUs"):
        slice_for(LAPTOP, 2, memory=100)


def own_cpus(*cpus: int, kept: dict[int, Slice] | None = None, others: tuple[Slice, ...] = ()) -> list[tuple[int, ...]]:
    """Which CPUs nodes of so many CPUs have on a host of four."""
    kept = kept or {}
    slices = [kept.get(number) or both(each, 512) for number, each in enumerate(cpus, start=1)]
    return [part.own_cpus for part in with_own_cpus(slices, kept, range(4), others)]


def test_each_node_has_cpus_of_its_own_if_the_host_has_them_all():
    assert own_cpus(2, 1, 1) == [(0, 1), (2,), (3,)]
    assert own_cpus(2, 2, 1) == [(), (), ()]
    assert [part.own_cpus for part in with_own_cpus([both(1, 512)], {}, (), ())] == [()]


def test_cpus_of_other_clusters_are_taken_last():
    other = both(2, 512).model_copy(update={"own_cpus": (0, 2)})
    assert own_cpus(1, 1, others=(other,)) == [(1,), (3,)]
    assert own_cpus(3, others=(other,)) == [(0, 1, 3)]


def test_whether_nodes_have_cpus_of_their_own_is_decided_once():
    first, second = (both(2, 512).model_copy(update={"own_cpus": own}) for own in ((0, 1), (1, 3)))
    assert own_cpus(2, 2, 2, kept={1: first, 2: second}) == [(0, 1), (1, 3), (0, 2)], "later nodes share"
    assert own_cpus(2, 2, kept={1: both(2, 512)}) == [(), ()]
