"""An all-reduce over plain TCP, for tensors on the CPU: one thread that sends and receives at once.

gloo passes each message from the caller's thread to a worker's, to the one that reads the network, and back. On a busy
machine each of them waits for its turn on a core, which takes longer than the transfer. Here the caller does it all.
"""

import fcntl
import hmac
import ipaddress
import os
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE

import torch
import torch.distributed as dist

OPERATIONS = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}
SMALL = 1 << 16  # bytes: up to here one exchange of everything beats two of slices
RANK, TOKEN = 4, 16  # bytes of what a rank says first: which one it is, and the token of whom it calls
# A connection whose other end is silent for a minute is asked, and given up a minute later: its node may be gone.
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface, netdevice(7)


class Peers:
    """Connections of this rank to every other rank of a group, made together by all of them."""

    def __init__(self, group, timeout):
        self.rank, self.size, self.timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        bound, told = own_address()
        token = secrets.token_bytes(TOKEN)  # the group tells it to the ranks, and to nobody else
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        with socket.create_server((bound, 0), family=family, backlog=self.size) as server:
            addresses = [None] * self.size
            dist.all_gather_object(addresses, (told, server.getsockname()[1], token), group)
            # By rank in the group.
            self.sockets = {peer: self.call(peer, *addresses[peer]) for peer in range(self.rank)}
            self.sockets |= self.answer(server, token)
        for connection in self.sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            connection.setblocking(False)

    def call(self, peer, address, port, token):
        """A connection to a rank below this one."""
        try:
            connection = socket.create_connection((address, port), self.timeout)
            connection.sendall(self.rank.to_bytes(RANK, "big") + token)
        except OSError as error:
            raise RuntimeError(f"rank {self.rank} cannot reach rank {peer} at {address}:{port}: {error}") from None
        return connection

    def answer(self, server, token):
        """The connections of the ranks above this one. Who does not know the token is a stranger, and sent away."""
        missing, found, deadline = set(range(self.rank + 1, self.size)), {}, time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            server.setblocking(False)
            selector.register(server, EVENT_READ)
            while missing:
                ready = selector.select(max(0, deadline - time.monotonic()))
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rank {self.rank} waited {self.timeout} s for ranks {sorted(missing)} to call")
                for key, _ in ready:
                    if key.fileobj is server:
                        with suppress(OSError):  # who has called may have gone
                            selector.register(server.accept()[0], EVENT_READ, bytearray())
                    elif (peer := introduced(key.fileobj, key.data, token)) is not None:
                        selector.unregister(key.fileobj)
                        if peer in missing:
                            missing.remove(peer)
                            found[peer] = key.fileobj
                        else:
                            key.fileobj.close()
            strangers = [key.fileobj for key in selector.get_map().values() if key.fileobj is not server]
        for stranger in strangers:
            stranger.close()
        return found

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
        self.move(
            {peer: as_bytes(outgoing[peer]) for peer in self.sockets},
            {peer: as_bytes(incoming[peer]) for peer in self.sockets},
        )
        return incoming

    def move(self, to_send, to_receive):
        """Send bytes and fill others with what comes, all at once: memoryviews of bytes by rank. Errors as `exchange`.

        Sending first and receiving then would not end: once the buffers on the way are full, each waits for the other.
        """
        to_send, to_receive = ({peer: view for peer, view in each.items() if view} for each in (to_send, to_receive))
        while to_send or to_receive:
            moved = sum([self.send(to_send, peer) for peer in list(to_send)])
            moved += sum([self.receive(to_receive, peer) for peer in list(to_receive)])
            if not moved:
                self.wait(to_send, to_receive)

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
        late = sorted({*to_send, *to_receive})
        with selectors.PollSelector() as selector:  # epoll would be made and closed by the kernel each time
            for peer in late:
                selector.register(
                    self.sockets[peer], EVENT_READ * (peer in to_receive) | EVENT_WRITE * (peer in to_send)
                )
            if not selector.select(self.timeout):
                raise RuntimeError(f"rank {self.rank} waited {self.timeout} s for ranks {late} in vain")


def introduced(connection, said, token):
    """Read on what a caller says first, into `said`: its rank, or -1 for a stranger; None if there is more to come."""
    try:
        more = connection.recv(RANK + TOKEN - len(said))
    except OSError:
        more = b""
    said += more
    if more and len(said) < RANK + TOKEN:
        return None
    return int.from_bytes(said[:RANK], "big") if hmac.compare_digest(said[RANK:], token) else -1


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
    """Where this rank listens, and what it tells the others: the address that it has on the way to rank 0, or that of
    the interface in GLOO_SOCKET_IFNAME.

    On rank 0's own host the way may lead over a loopback address, by which other hosts would reach themselves: it is
    told by its name, MASTER_ADDR, and listens everywhere. Ranks without one met through a file, on one host.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return (address_of(interface),) * 2
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # a datagram socket sends nothing to connect
        address = probe.getsockname()[0]
    if ipaddress.ip_address(address).is_loopback and master not in ("localhost", address):
        return "::" if family == socket.AF_INET6 else "", master
    return address, address


def address_of(interface):
    """The IPv4 address of an interface, or else an IPv6 address of it that other hosts reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    with open("/proc/net/if_inet6") as table:
        for digits, _, _, scope, _, name in map(str.split, table):
            if name == interface and scope == "00":  # global
                return str(ipaddress.ip_address(bytes.fromhex(digits)))
    raise RuntimeError(f"GLOO_SOCKET_IFNAME names {interface}, which does not exist here or has no address")
