"""What time it is for an engine: the wall's, or that of a simulated device whose steps take what a table says.

A simulated device computes the same tokens, drafts and acceptances as this one; only the time of its steps is taken
from elsewhere. So policies can be compared for a machine that is not at hand, and without the noise of the one that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

StepMilliseconds = Callable[[int, int, int, float], float]
"""Of a step, from its requests, causal rows, draft rows, and mean tokens in a request's cache."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since some moment."""

    def computed(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """Told after every forward, with what it computed."""


class WallClock:
    """The time that passes here."""

    def now(self) -> float:
        return time.perf_counter()

    def computed(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """A forward has taken its time already."""


class Stopwatch(WallClock):
    """The time that passes here while it is running: for engines that take turns on one machine."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, None

    def now(self) -> float:
        return self._before if self._since is None else self._before + time.perf_counter() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time passes within."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._before, self._since = self.now(), None


class SimulatedClock:
    """Time passes by forwards alone, and each takes what ``milliseconds`` says."""

    def __init__(self, milliseconds: StepMilliseconds):
        self._milliseconds, self._now = milliseconds, 0.0

    def now(self) -> float:
        return self._now

    @contextmanager
    def running(self) -> Iterator[None]:
        """As a stopwatch's: nothing passes between forwards anyway."""
        yield

    def computed(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        self._now += self._milliseconds(requests, causal_rows, draft_rows, context) / 1e3
