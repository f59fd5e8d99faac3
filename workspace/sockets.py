"""An all-reduce over plain TCP, for tensors on the CPU: one thread that sends and receives at once.

gloo passes each message from the caller's thread to a worker's, to the one that reads the network, and back. On a busy
machine each of them waits for its turn on a core, which takes longer than the transfer. Here the caller does it all.
"""

import os
import select
import socket

import torch
import torch.distributed as dist

OPERATIONS = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}
SMALL = 1 << 16  # bytes: up to here one exchange of everything beats two of slices


class Peers:
    """Connections of this rank to every other rank of a group, made together by all of them."""

    def __init__(self, group, timeout):
        self.rank, self.size, self.timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        self.sockets = {}  # rank in the group -> connection
        with socket.create_server(("", 0), backlog=self.size) as server:
            server.settimeout(timeout)
            addresses = [None] * self.size
            dist.all_gather_object(addresses, (own_address(), server.getsockname()[1]), group)
            for peer in range(self.rank):
                self.sockets[peer] = socket.create_connection(addresses[peer], timeout)
                self.sockets[peer].sendall(self.rank.to_bytes(4, "big"))
            while len(self.sockets) < self.size - 1:
                connection, _ = server.accept()
                connection.settimeout(timeout)
                said = connection.recv(4, socket.MSG_WAITALL)
                peer = int.from_bytes(said, "big")
                if len(said) == 4 and self.rank < peer < self.size:  # not a stranger who tries ports
                    self.sockets[peer] = connection
        for connection in self.sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def all_reduce(self, tensor, op, wire):
        """A new tensor like `tensor`, of any shape: reduced over the ranks in their order, so bitwise equal on each.

        `wire` is the type in which numbers travel; sums are of the tensor's own. Of n numbers, each of R ranks sends
        (R - 1) n at once if R is 2 or the tensor is small, else 2 (R - 1) / R n in two turns.
        """
        own = tensor.detach().reshape(-1)  # [n]
        reduce = OPERATIONS[op]
        sent = own.to(wire)
        if self.size == 2 or sent.nbytes <= SMALL:
            total = reduced(reduce, self.exchange([sent] * self.size), own.dtype)
        else:
            # Rank r reduces slice r of all ranks (a reduce-scatter), then gives it to all (an all-gather).
            slices = self.exchange(sent.tensor_split(self.size))
            mine = reduced(reduce, slices, own.dtype).to(wire)
            sizes = [len(each) for each in sent.tensor_split(self.size)]
            total = torch.cat(self.exchange([mine] * self.size, sizes)).to(own.dtype)
        return total.view(tensor.shape)

    def exchange(self, outgoing, sizes=None):
        """Give outgoing[r], of one dimension, to each rank r; the tensors that they gave to this one, by rank.

        What rank r gives has sizes[r] numbers (default: as many as this rank keeps). RuntimeError if a rank has gone,
        or nothing moves for `timeout` seconds.
        """
        own = outgoing[self.rank]
        incoming = [own.new_empty(len(own) if sizes is None else sizes[peer]) for peer in range(self.size)]
        incoming[self.rank] = own
        to_send = {peer: view for peer in self.sockets if (view := as_bytes(outgoing[peer]))}
        to_receive = {peer: view for peer in self.sockets if (view := as_bytes(incoming[peer]))}
        while to_send or to_receive:
            moved = sum([self.send(to_send, peer) for peer in list(to_send)])
            moved += sum([self.receive(to_receive, peer) for peer in list(to_receive)])
            if not moved:
                self.wait(to_send, to_receive)
        return incoming

    def send(self, to_send, peer):
        """Send what fits into the connection now; how many bytes that was."""
        try:
            count = self.sockets[peer].send(to_send[peer])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RuntimeError(f"rank {self.rank} lost its connection to rank {peer}: {error}") from None
        advance(to_send, peer, count)
        return count

    def receive(self, to_receive, peer):
        """Receive what has come; how many bytes that was."""
        try:
            count = self.sockets[peer].recv_into(to_receive[peer])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise RuntimeError(f"rank {self.rank} lost its connection to rank {peer}: {error}") from None
        if not count:
            raise RuntimeError(f"rank {self.rank} lost its connection to rank {peer}: it has ended")
        advance(to_receive, peer, count)
        return count

    def wait(self, to_send, to_receive):
        """Sleep until a byte can move."""
        readers, writers = ([self.sockets[peer] for peer in each] for each in (to_receive, to_send))
        if not any(select.select(readers, writers, [], self.timeout)):
            late = sorted({*to_send, *to_receive})
            raise RuntimeError(f"rank {self.rank} waited {self.timeout} s for ranks {late} in vain")


def reduced(reduce, parts, dtype):
    """Parts of all ranks as one tensor of `dtype`, taken in the order of ranks."""
    total = parts[0].to(dtype)
    for index, part in enumerate(parts[1:]):
        total = reduce(total, part, out=total) if index else reduce(total, part.to(dtype))
    return total


def as_bytes(tensor):
    return memoryview(tensor.contiguous().view(torch.uint8).numpy())


def advance(left, peer, count):
    """Take `count` bytes off what is left for a peer."""
    if count == len(left[peer]):
        del left[peer]
    else:
        left[peer] = left[peer][count:]


def own_address():
    """Where the other ranks reach this one: the address it has on the way to rank 0.

    On rank 0's own host that may be a loopback address, which leads other hosts astray: there it is MASTER_ADDR. Ranks
    without one met through a file, on one host.
    """
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # a datagram socket sends nothing to connect
        address = probe.getsockname()[0]
    return master if address.startswith("127.") else address
