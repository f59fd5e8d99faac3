"""The all-reduce over sockets: the right sums, the same bits on every rank, and an end when another rank has gone."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

import communication
from config import Config
from processes import spawn
from sockets import SMALL, Peers

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
    for name, tensor in tensors(rank):
        before = tensor.clone()
        for operation, op in OPERATIONS.items():
            found[name, operation] = communication.all_reduce(tensor, "forward", op)
        assert torch.equal(tensor, before), f"{name} was changed"
    communication.configure(Config(wire="bfloat16"))
    large = torch.randn(SHAPES["large"], generator=torch.Generator().manual_seed(rank))
    found["rounded"] = communication.all_reduce(large, "forward", rounded=True)
    found["exact"] = communication.all_reduce(large, "forward")
    for shape in ((), (SMALL, 3)):
        counted = torch.full(shape, 256.0 if rank == 0 else 1.0)
        found["counted", shape] = communication.all_reduce(counted, "forward", rounded=True)
    for transport in ("socket", "backend"):
        communication.configure(Config(all_reduce=transport))
        sizes = [2, 0, 3][:world_size]
        share = torch.full((sizes[rank], 4), float(rank))
        found["gathered", transport] = communication.all_gather(share, sizes, "optimizer")
    communication.configure(Config())
    pair = dist.new_group([0, world_size - 1])
    if rank in (0, world_size - 1):
        found["pair"] = communication.all_reduce(torch.tensor(rank + 1.0), "forward", group=pair)
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


def test_a_group_sums_over_its_ranks_alone(ranks):
    last = len(ranks)
    assert ranks[0]["pair"] == ranks[-1]["pair"] == 1 + last


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
