"""Being told to stop: Ctrl-C on a terminal, SIGTERM from a CI that cancels, SIGHUP when the terminal closes."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP: stops what Ctrl-C stops, in the same way."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


def raise_interrupted(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)


def raise_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise Interrupted. A signal that is ignored, as under nohup, stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, raise_interrupted)


@contextmanager
def uninterrupted(remind: Callable[[], None]) -> Iterator[None]:
    """Within this context SIGINT, SIGTERM and SIGHUP call ``remind`` instead of raising."""
    if threading.current_thread() is not threading.main_thread():  # only the main one is ever interrupted
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: remind()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
