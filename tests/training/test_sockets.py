"""The all-reduce over sockets: the right sums, the same bits on every rank, and an end when another rank has gone."""

import os
import socket
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from gpt.config import Config
from lessons import ring
from processes import spawn
from ranks import communication, sockets
from ranks.sockets import SMALL, Peers
from steps import of_torch_2_6

# Small ones go whole, large ones in slices when there are more than two ranks; 7 numbers do not divide by 2 or 3.
SHAPES = {"scalar": (), "odd": (7,), "matrix": (5, 7), "large": (SMALL // 4 + 5, 3), "empty": (0,)}
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def tensors(rank):
    generator = torch.Generator().manual_seed(rank)
    for name, shape in SHAPES.items():
        for dtype in (torch.float32, torch.float64):
            yield f"{name} {dtype}", torch.randn(shape, generator=generator, dtype=dtype)
    yield "transposed", torch.randn(4, 6, generator=generator).T
    yield "integers", torch.arange(10) * rank


def reduce_all(rank, world_size):
    found = {}
    communication.configure(Config(all_reduce="socket"))
    for name, tensor in tensors(rank):
        before = tensor.clone()
        for operation, op in OPERATIONS.items():
            found[name, operation] = communication.all_reduce(tensor, "forward", op)
        assert torch.equal(tensor, before), f"{name} was changed"
    communication.configure(Config(all_reduce="socket", wire="bfloat16"))
    large = torch.randn(SHAPES["large"], generator=torch.Generator().manual_seed(rank))
    found["rounded"] = communication.all_reduce(large, "forward", rounded=True)
    found["exact"] = communication.all_reduce(large, "forward")
    for shape in ((), (SMALL, 3)):
        counted = torch.full(shape, 256.0 if rank == 0 else 1.0)
        found["counted", shape] = communication.all_reduce(counted, "forward", rounded=True)
    communication.configure(Config(wire="bfloat16"))
    for rounded in (True, False) if communication.sums(torch.bfloat16, "cpu") else (False,):
        some = torch.tensor([256.0, 1.0, 0.0][rank])
        found["by torch", rounded] = communication.all_reduce(some, "forward", rounded=rounded)
    for transport in ("socket", "backend"):
        communication.configure(Config(all_reduce=transport))
        sizes = [2, 0, 3][:world_size]
        share = torch.full((sizes[rank], 4), float(rank))
        found["gathered", transport] = communication.all_gather(share, sizes, "optimizer")
    communication.configure(Config(all_reduce="socket"))
    peers, six = ring.CountingPeers(dist.group.WORLD, timeout=60), torch.arange(6.0) * (rank + 1)
    found["lesson", "ring"] = ring.ring(peers, six)
    found["sent by the ring"] = torch.tensor(peers.sent)
    found["lesson", "gather"] = ring.gather_to_one(peers, six)
    pair = dist.new_group([0, world_size - 1])
    if rank in (0, world_size - 1):
        found["pair"] = communication.all_reduce(torch.tensor(rank + 1.0), "forward", group=pair)
    communication.configure(Config())
    return found


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request, tmp_path_factory):
    return spawn(reduce_all, request.param, tmp_path_factory.mktemp("sockets"))


def test_each_rank_has_the_sum_and_the_maximum(ranks):
    for given in zip(*(tensors(rank) for rank in range(len(ranks))), strict=True):
        name, stacked = given[0][0], torch.stack([tensor for _, tensor in given])
        tolerance = 1e-12 if stacked.dtype == torch.float64 else 1e-5
        for rank in ranks:
            torch.testing.assert_close(rank[name, "sum"], stacked.sum(0), rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(rank[name, "max"], stacked.amax(0), rtol=0, atol=0)


@pytest.mark.parametrize("transport", ["socket", "backend"])
def test_unequal_shares_are_gathered_in_the_order_of_ranks(ranks, transport):
    expected = [0.0] * 2 + [2.0] * 3 * (len(ranks) == 3)
    for rank in ranks:
        assert rank["gathered", transport].tolist() == [[value] * 4 for value in expected]


def test_ranks_agree_to_the_bit(ranks):
    for name in ranks[0]:
        if name != "pair":
            assert all(torch.equal(rank[name], ranks[0][name]) for rank in ranks), name


def test_rounded_numbers_differ_by_their_rounding(ranks):
    error = (ranks[0]["rounded"] - ranks[0]["exact"]).abs().max() / ranks[0]["exact"].abs().max()
    assert 0 < error < 2**-7


def test_numbers_that_travel_rounded_are_not_summed_rounded(ranks):
    """bfloat16 has 256 and 258, but no 257: there 256 + 1 is 256, however often."""
    for rank in ranks:
        for shape in ((), (SMALL, 3)):
            assert rank["counted", shape].unique().tolist() == [255 + len(ranks)]


def test_torch_sums_in_the_precision_on_the_network(ranks):
    """bfloat16 has no 257."""
    if ("by torch", True) not in ranks[0]:
        pytest.skip("this torch's gloo does not add bfloat16")
    for rank in ranks:
        assert (rank["by torch", True], rank["by torch", False]) == (256, 257)


@of_torch_2_6
def test_gloo_adds_bfloat16(ranks):
    assert ("by torch", True) in ranks[0]


@pytest.mark.parametrize("adds", [True, False])
def test_a_precision_that_the_backend_does_not_add_is_refused_at_the_start(monkeypatch, adds):
    monkeypatch.setattr(communication, "sums", lambda dtype, device: adds or dtype != torch.bfloat16)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(communication, "settings", communication.Settings(wire="bfloat16"))
    with nullcontext() if adds else pytest.raises(ValueError, match=r"--wire bfloat16: gloo .* take --wire float32"):
        communication.check(torch.device("cpu"))
    communication.configure(Config(wire="bfloat16", all_reduce="socket"))
    communication.check(torch.device("cpu"))
    communication.configure(Config())


def test_a_group_sums_over_its_ranks_alone(ranks):
    last = len(ranks)
    assert ranks[0]["pair"] == ranks[-1]["pair"] == 1 + last


def test_the_ways_of_the_lesson_sum_and_a_ring_sends_what_the_page_says(ranks):
    size = len(ranks)
    for rank in ranks:
        for way in ("ring", "gather"):
            assert torch.equal(rank["lesson", way], torch.arange(6.0) * (size * (size + 1) / 2)), way
        assert rank["sent by the ring"] == 2 * (size - 1) * 6 * 4 / size


STRANGERS = (b"", b"\0\0\0\1", b"\0\0\0\1" + bytes(16))  # rank 1, they say, and know no token


def visited(rank, world_size):
    """A sum, how many strangers who called before rank 1 were sent away, whether rank 0 listened at another address
    too, and after how many seconds of silence a connection is given up."""
    strangers, call, elsewhere = [], Peers.call, []

    def call_after_strangers(peers, peer, address, port, token):
        for said in STRANGERS:
            strangers.append(socket.create_connection((address, port), timeout=60))
            strangers[-1].sendall(said)
        with socket.socket() as probe:
            elsewhere.append(probe.connect_ex(("127.0.0.2", port)) == 0)
        return call(peers, peer, address, port, token)

    with patch.object(Peers, "call", call_after_strangers):
        peers = Peers(dist.group.WORLD, timeout=60)
    total = peers.all_reduce(torch.tensor([1.0 + rank]), dist.ReduceOp.SUM, torch.float32)
    (connection,) = peers.sockets.values()
    silence = [connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in KEEPALIVE]
    kept_alive = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    seconds = kept_alive and silence[0] + silence[1] * silence[2]
    return total.item(), sum(has_ended(each) for each in strangers), elsewhere, seconds


KEEPALIVE = ("IDLE", "INTVL", "CNT")


def has_ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_stranger_is_not_taken_for_a_rank(tmp_path):
    """Nor does one who says nothing keep the ranks waiting. Who is told 127.0.0.1 is not reached at 127.0.0.2."""
    assert spawn(visited, 2, tmp_path) == [(3.0, 0, [], 120), (3.0, len(STRANGERS), [False], 120)]


def over_ipv6(rank, world_size):
    os.environ["MASTER_ADDR"] = "::1"
    peers = Peers(dist.group.WORLD, timeout=60)
    total = peers.all_reduce(torch.tensor([1.0 + rank]), dist.ReduceOp.SUM, torch.float32)
    return total.item(), [each.family == socket.AF_INET6 for each in peers.sockets.values()]


def test_ranks_meet_over_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")  # as in containers without it: there is nothing to meet over
    assert spawn(over_ipv6, 2, tmp_path) == [(3.0, [True])] * 2


def test_a_rank_listens_only_where_the_others_reach_it(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert sockets.own_address() == ("127.0.0.1", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,other")
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert sockets.own_address() == ("127.0.0.1", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(RuntimeError, match="GLOO_SOCKET_IFNAME names none0, which does not exist here"):
        sockets.own_address()


def test_rank_0_whose_name_is_a_loopback_address_at_home_is_told_by_its_name(monkeypatch):
    """As Debian's /etc/hosts has it: 127.0.1.1 is the host itself, for others too."""
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert sockets.own_address() == ("", "node-1")


def meet(rank, world_size, last_words):
    """Rank 1 connects, then does `last_words`; what rank 0 is told when it wants to sum with it."""
    peers = Peers(dist.group.WORLD, timeout=60)
    peers.timeout = 1  # from here on: to connect may take longer on a busy machine
    if rank == 1:
        last_words(peers)
        dist.barrier()
        return ""
    if last_words is hang_up:
        dist.barrier()
    with pytest.raises(RuntimeError) as error:
        peers.all_reduce(torch.ones(SMALL), dist.ReduceOp.SUM, torch.float32)
    if last_words is not hang_up:
        dist.barrier()
    return str(error.value)


def hang_up(peers):
    for connection in peers.sockets.values():
        connection.close()


def say_nothing(_):
    pass


@pytest.mark.parametrize(
    ("last_words", "message"),
    [(hang_up, "rank 0 lost its connection to rank 1"), (say_nothing, "rank 0 waited 1 s for ranks [1] in vain")],
)
def test_nobody_waits_for_ever(tmp_path, last_words, message):
    worker = partial(meet, last_words=last_words)
    worker.__name__ = "meet"
    assert message in spawn(worker, 2, tmp_path)[0]
