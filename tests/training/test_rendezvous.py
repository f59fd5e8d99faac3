"""The roll call: what a rank is told when the launch is wrong."""

import json
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from processes import FORKS, free_port
from ranks import rendezvous
from ranks.environment import Env

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)  # a wait that is to end in vain, and one that is not
HOST = socket.gethostname()


def rank(number, world_size=3, port=None):
    return Env(number, world_size, 0, "127.0.0.1", port, "node-1", "7", launcher="srun")


def come(store, number, host):
    """What a rank on another host does when it comes."""
    store.set(f"rank {number}", json.dumps({"host": host, "pid": 1, "gpu": ""}))
    store.add("came", 1)


def test_all_are_there():
    store = dist.HashStore()
    come(store, 1, "node-2")
    said = rendezvous.roll_call(store, rank(0, world_size=2), MINUTE)
    assert [each["host"] for each in said] == [HOST, "node-2"]


def test_who_waits_hears_of_the_last_that_comes():
    """Over TCP, where a waiting rank hears of some changes and not of others."""
    port = free_port()
    ranks = [rank(number, world_size=2, port=port) for number in (0, 1)]
    stores = [rendezvous.meet(each, MINUTE) for each in ranks]
    with ThreadPoolExecutor() as threads:
        first = threads.submit(rendezvous.roll_call, stores[0], ranks[0], MINUTE)
        while not stores[1].check(["rank 0"]):
            assert not first.done()
        assert rendezvous.roll_call(stores[1], ranks[1], MINUTE) == first.result(timeout=60)


def test_a_rank_that_does_not_come_is_named_with_those_that_did():
    store = dist.HashStore()
    come(store, 1, "node-2")
    expected = f"of 3 ranks these did not come within 1 s: 2. There are, by node: {HOST}: 0; node-2: 1."
    with pytest.raises(rendezvous.LaunchError, match=re.escape(expected)):
        rendezvous.roll_call(store, rank(0), SECOND)


def test_of_many_that_do_not_come_some_are_named():
    assert rendezvous.some(list(range(20))) == "0, 1, 2, 3, 4, 5 and 14 more"


def test_a_rank_that_is_there_twice_is_told_to_all():
    store = dist.HashStore()
    come(store, 0, "node-2")
    expected = f"two processes say that they are rank 0 of 3: on node-2 and on {HOST}"
    with pytest.raises(rendezvous.LaunchError, match=expected):
        rendezvous.roll_call(store, rank(0), MINUTE)
    with pytest.raises(rendezvous.LaunchError, match=expected):
        rendezvous.roll_call(store, rank(1), MINUTE)


def test_a_meeting_whose_holder_has_ended():
    port = free_port()
    holder = dist.TCPStore("127.0.0.1", port, is_master=True, timeout=MINUTE, wait_for_workers=False)
    store = rendezvous.meet(rank(1, port=port), MINUTE)
    del holder
    with pytest.raises(rendezvous.LaunchError, match="the rank that holds the meeting has ended"):
        rendezvous.roll_call(store, rank(1), MINUTE)


def test_nobody_at_the_address():
    with pytest.raises(rendezvous.LaunchError, match=r"rank 1 on \S+ found nobody at 127.0.0.1:\d+ within 1 s"):
        rendezvous.meet(rank(1, port=free_port()), SECOND)


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(rendezvous.LaunchError, match=rf"cannot hold the meeting at 127.0.0.1:{port}.*another job"):
            rendezvous.meet(rank(0, port=port), MINUTE)


def test_two_jobs_at_one_port_do_not_meet():
    port = free_port()
    holder = rendezvous.meet(rank(0, port=port), MINUTE)
    come(holder, 0, "node-1")
    stranger = Env(1, 3, 0, "127.0.0.1", port, "node-1", "8")
    assert not rendezvous.meet(stranger, MINUTE).check(["rank 0"])


def test_a_group_that_does_not_know_the_ranks_as_the_launcher_does():
    process = FORKS.Process(target=take_a_group_of_one)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0


def test_a_program_ends_with_the_reason_and_no_traceback(monkeypatch):
    """MPI has not started this process."""
    monkeypatch.setattr(sys, "argv", ["some/train.py"])
    expected = (
        r"^train\.py: error: --backend mpi: .*; MPI's ranks are to be started by mpirun, or by srun with --mpi=pmix$"
    )
    with pytest.raises(SystemExit, match=expected), rendezvous.process_group(rank(0), "mpi", 1):
        pytest.fail("there is a group")


def take_a_group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(rendezvous.LaunchError, match="srun says rank 1 of 2, gloo rank 0 of 1"):
        rendezvous.take_group(rank(1, world_size=2))
