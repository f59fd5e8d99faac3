"""How long the steps of a command take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timeline(list[tuple[str, float]]):
    """Steps in their order, each with the seconds that it took."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Record the time of the `with` block, unless it fails."""
        started = time.perf_counter()
        yield
        self.append((name, time.perf_counter() - started))

    def stages(self) -> Callable[[str], None]:
        """Returns a function that records each stage of readiness when it is reached."""
        last = time.perf_counter()

        def reached(stage: str) -> None:
            nonlocal last
            now = time.perf_counter()
            self.append((f"ready: {stage}", now - last))
            last = now

        return reached
