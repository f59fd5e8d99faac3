"""The collectives, and the sends and receives of a pipeline, counted and timed: all that ranks send while they train,
except the flag of signals.py.

A collective's time is from its call to its end: the transfer, and the wait for the slowest rank. The gradient's buckets
under DistributedDataParallel overlap with computing: their time is what is left when computing is over. On a GPU a call
only launches. There CUDA events give the times: from when the GPU begins the collective to when it is over.
"""

import math
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

# kind -> collectives since the start: forward, backward, gradient_norm, loss. They are all-reduces where the kind names
# no other, as "forward all_gather" does.
# A backend is torch's: gloo, nccl or mpi. A transport is a backend, or "socket": sockets.py.
calls = Counter()
seconds = Counter()  # kind -> time in them
carried = Counter()  # transport -> collectives that it carried
pending = []  # (kind, start, end) of what was launched on the GPU, whose time is not known yet
WIRES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@contextmanager
def counted(kind, group=None, device_type=None, socket=False):
    """Count a collective of what is on a device; by default on that which the ranks compute on."""
    transport = "socket" if socket else backend(group, device_type)
    start = moment(transport)
    with marked("collective", kind, group):
        yield
    count(kind, transport)
    took(kind, start, moment(transport))


def count(kind, transport):
    calls[kind] += 1
    carried[transport] += 1


def moment(transport):
    """Now, in seconds; with NCCL an event, which notes when the GPU comes to it."""
    if transport != "nccl":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def took(kind, start, end):
    """Add the time between two moments."""
    if isinstance(start, float):
        seconds[kind] += end - start
    else:
        pending.append((kind, start, end))


def settle():
    """Wait until the GPU is through with what was launched, and add its times."""
    if pending:
        torch.cuda.synchronize()
    for kind, start, end in pending:
        seconds[kind] += start.elapsed_time(end) / 1000  # it is in ms
    pending.clear()


def backend(group=None, device_type=None):
    """The backend of torch that carries what is on a device; by default on that which the ranks compute on."""
    config = dist.get_backend_config(group)  # like "cpu:gloo,cuda:nccl"
    backends = dict(each.split(":") for each in config.split(",") if ":" in each)
    if device_type is None:
        device_type = "cuda" if backends.get("cuda") == "nccl" else "cpu"
    return backends.get(device_type) or dist.get_backend(group)


def own_device():
    """What this rank computes on: with NCCL the GPU that it has made current."""
    return torch.device("cuda", torch.cuda.current_device()) if backend() == "nccl" else torch.device("cpu")


def transport_of(device):
    """The transport of sums of what is on the device, as far as they are this module's."""
    return "socket" if by_socket(device) else backend(None, device.type)


def marked(what, kind, group=None):
    """A mark for torch.profiler, by which timeline.py knows the ranks of a collective."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    return torch.profiler.record_function(f"{what} {kind} {','.join(map(str, ranks))}")


@dataclass
class Settings:
    """What a run chose of config.py; see there."""

    all_reduce: str = "backend"
    wire: str = "float32"
    timeout: int = 300


settings = Settings()
peers = WeakKeyDictionary()  # group -> this rank's connections to the others of it


def configure(config):
    """Take over the run's choices."""
    settings.all_reduce, settings.wire, settings.timeout = config.all_reduce, config.wire, config.timeout


def sums(dtype, device):
    """Whether the backend adds such numbers. gloo of Debian's torch 2.14 refuses bfloat16. Every rank calls it."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=dtype, device=device))
    except RuntimeError as error:
        if "scalar type" not in str(error):  # what gloo says of a type; anything else is no answer
            raise
        return False
    return True


def check(device):
    """ValueError if numbers cannot travel in the run's wire precision. Every rank of the world calls it."""
    wire = WIRES[settings.wire]
    if wire != torch.float32 and dist.is_initialized() and not by_socket(device) and not sums(wire, device):
        raise ValueError(
            f"--wire {settings.wire}: {dist.get_backend()} of torch {torch.__version__} does not add such numbers; "
            "take --wire float32, or --all-reduce socket"
        )


def all_reduce(tensor, kind, op=dist.ReduceOp.SUM, group=None, rounded=False):
    """A new tensor of the same shape, the sum (or `op`, MAX) over the ranks of the group, bitwise equal on each.

    `rounded`: float32 numbers may travel in the run's `wire` precision. Sockets still sum them in their own; the
    backend cannot.
    """
    wire = WIRES[settings.wire] if rounded and tensor.dtype == torch.float32 else tensor.dtype
    socket = by_socket(tensor.device)
    with counted(kind, group, tensor.device.type, socket):
        if socket:
            return connections(group or dist.group.WORLD).all_reduce(tensor, op, wire)
        result = tensor.to(wire, copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(result, op, group)
        return result.to(tensor.dtype)


def all_gather(tensor, sizes, kind, group=None, rounded=False):
    """The tensors of all ranks, [sizes[rank], ...] each, one behind the other, [sum of sizes, ...], on every rank.

    `rounded` as in all_reduce.
    """
    wire = WIRES[settings.wire] if rounded and tensor.dtype == torch.float32 else tensor.dtype
    group, sent = group or dist.group.WORLD, tensor.to(wire).contiguous()
    socket = by_socket(tensor.device)
    with counted(f"{kind} all_gather", group, tensor.device.type, socket):
        if socket:
            width = math.prod(sent.shape[1:])
            parts = connections(group).exchange([sent.view(-1)] * len(sizes), [size * width for size in sizes])
        else:
            longest = sent.new_zeros(max(sizes), *sent.shape[1:])  # the backend takes equal shapes only
            longest[: len(sent)] = sent
            parts = [torch.empty_like(longest) for _ in sizes]
            dist.all_gather(parts, longest, group)
            parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat([part.view(-1, *sent.shape[1:]) for part in parts]).to(tensor.dtype)


def by_socket(device):
    """Whether sockets.py carries what is on the device: never what is on a GPU."""
    return settings.all_reduce == "socket" and device.type == "cpu"


def connections(group):
    """Peers of the group, connected by the first call, which all its ranks make together."""
    if group not in peers:
        from ranks.sockets import Peers  # here, so that nobody needs that file to read this one

        peers[group] = Peers(group, settings.timeout)
    return peers[group]


def receive(tensor, source, kind):
    """Fill the tensor with what rank `source` sends, and return it. Its time is mostly the wait for the sender."""
    with counted(kind):
        dist.recv(tensor, source)
    return tensor


class Sends:
    """Sends that go on while the rank computes. Their time is what is left of them at the end."""

    def __init__(self):
        self.works = []

    def start(self, tensor, destination, kind):
        self.works.append((kind, dist.isend(tensor.detach(), destination)))

    def finish(self):
        """Wait for all, and count them."""
        for kind, work in self.works:
            with counted(kind):
                work.wait()
        self.works.clear()


class Buckets:
    """DistributedDataParallel's hook: average a bucket of gradients over the ranks, in the run's wire precision on the
    way, and count it. Sockets carry it while backward waits, the backend while backward goes on.
    """

    def __init__(self, wrapped):
        self.group, self.ready, self.transport = wrapped.process_group, None, ""
        wrapped.register_comm_hook(None, self.reduce)

    def reduce(self, _, bucket):
        gradient = bucket.buffer().div_(self.group.size())
        if by_socket(gradient.device):
            future = torch.futures.Future()
            future.set_result(all_reduce(gradient, "backward", group=self.group, rounded=True))
            return future
        self.transport = backend(self.group, gradient.device.type)
        self.ready = moment(self.transport)
        count("backward", self.transport)
        sent = gradient.to(WIRES[settings.wire]) if gradient.dtype == torch.float32 else gradient
        with marked("begun", "backward", self.group):
            reduced = dist.all_reduce(sent, group=self.group, async_op=True).get_future()
        return reduced.then(lambda done: done.value()[0].to(gradient.dtype))

    def waited(self):
        """Count the time since the last bucket was ready, of those that overlap: call it when backward has ended."""
        if self.ready is not None:
            took("backward", self.ready, moment(self.transport))


def phase():
    """backward while autograd runs, else forward."""
    return "forward" if torch._C._current_graph_task_id() == -1 else "backward"
