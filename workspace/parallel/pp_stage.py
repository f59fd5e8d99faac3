"""A stage of pp.py's pipeline.

Legend: B batch, T time, V symbols, M microbatches.
"""

import time
from contextlib import contextmanager, nullcontext

from torch.distributed.pipelining import PipelineStage
from torch.nn import functional as F

from ranks.communication import Sends, count, moment, receive, took, transport


class Stage(PipelineStage):
    """torch's stage, which does its sends and receives itself, counted, and notes when it computes.

    The schedule asks it for them in the right order, right before and after it computes. Left to torch 2.6, of a send
    and a receive only the receive is waited for, and gloo drops a send that nobody holds.

    With NCCL it leaves them to the schedule, and counts them only: what goes to a rank and what comes from it is done
    in one order, so that two ranks that both send first would wait for each other. The schedule starts both at once,
    by batch_isend_irecv.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.count, self.sends = 1, Sends()
        self.batched, self.handed = transport(None, self.device.type) == "nccl", None
        self.spans = {}  # (forward or backward, microbatch) -> [start, end] in the last batch, by time.perf_counter

    @contextmanager
    def computing(self, kind, microbatch):
        """Note the time; if it has been noted before, it is longer now."""
        self.over()
        span = self.spans.setdefault((kind, microbatch), [time.perf_counter(), None])
        yield
        span[1] = time.perf_counter()

    def loss(self, logits, targets):
        """A microbatch's part of the mean loss of the whole batch: these add up to it, and so do their gradients.

        Newer torch (2.14) also asks for it before the first microbatch, to learn shapes: that is not noted.
        """
        last = next(reversed(self.spans), None)
        with self.computing(*last) if last else nullcontext():
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / self.count

    def forward_one_chunk(self, microbatch, *arguments, **options):
        with self.computing("forward", microbatch):
            return super().forward_one_chunk(microbatch, *arguments, **options)

    def backward_one_chunk(self, microbatch, *arguments, **options):
        with self.computing("backward", microbatch):
            return super().backward_one_chunk(microbatch, *arguments, **options)

    def get_fwd_recv_ops(self, microbatch):
        return self.receive(super().get_fwd_recv_ops(microbatch), "forward")

    def get_bwd_recv_ops(self, microbatch):
        return self.receive(super().get_bwd_recv_ops(microbatch), "backward")

    def get_fwd_send_ops(self, microbatch):
        return self.send(super().get_fwd_send_ops(microbatch), "forward")

    def get_bwd_send_ops(self, microbatch):
        return self.send(super().get_bwd_send_ops(microbatch), "backward")

    def hand_over(self, operations, kind):
        """Count what the schedule sends and receives itself; its time is that until the GPU computes again."""
        for _ in operations:
            count(kind, "nccl")
        if operations and self.handed is None:
            self.handed = kind, moment("nccl")
        return operations

    def over(self):
        """What was handed over has been waited for: add its time."""
        if self.handed is not None:
            took(*self.handed, moment("nccl"))
            self.handed = None

    def receive(self, operations, kind):
        if self.batched:
            return self.hand_over(operations, kind)
        for each in operations:
            receive(each.tensor, each.peer, kind)
        return []

    def send(self, operations, kind):
        if self.batched:
            return self.hand_over(operations, kind)
        for each in operations:
            self.sends.start(each.tensor, each.peer, kind)
        return []
