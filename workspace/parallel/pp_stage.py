"""A stage of pp.py's pipeline.

Legend: B batch, T time, C channels, V symbols, M microbatches.
"""

import time
from contextlib import contextmanager, nullcontext

from torch.distributed.pipelining import PipelineStage
from torch.nn import functional as F

from ranks.communication import Sends, backend, count, moment, receive, took


class Stage(PipelineStage):
    """torch's stage, which also counts its sends and receives and notes when it computes.

    torch's schedule asks a stage for the sends and receives of each microbatch, [B/M, T, C], right before and right
    after it computes: get_fwd_recv_ops and the three like it.

    With gloo the stage does them at once, and gives the schedule none. Where a stage sends and receives, the schedule
    of torch 2.6 waits for the receive only, and gloo drops a send that nobody holds.

    With NCCL the stage gives them to the schedule, and only counts them. All messages between two ranks then go in one
    order: two ranks that both send first would wait for each other. The schedule starts a send and a receive together,
    by batch_isend_irecv.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.count, self.sends = 1, Sends()
        # Whether the schedule sends and receives; of what it is doing, the kind and when it began.
        self.batched, self.handed = backend(None, self.device.type) == "nccl", None
        self.spans = {}  # (forward or backward, microbatch) -> [start, end] in the last batch, by time.perf_counter

    @contextmanager
    def computing(self, kind, microbatch):
        """Note when a microbatch is computed. The second time, the loss's, makes the span of its forward longer."""
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
        """Count what the schedule sends and receives. It takes until the GPU computes again."""
        for _ in operations:
            count(kind, "nccl")
        if operations and self.handed is None:
            self.handed = kind, moment("nccl")
        return operations

    def over(self):
        """The GPU is about to compute, so what was handed over has been waited for: add its time."""
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
