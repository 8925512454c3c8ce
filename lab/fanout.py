"""One observer for the engine that passes everything on to several, which may come and go while it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from recguide.engine.observe import Observer, Outcome
from recguide.engine.request import Request
from recguide.engine.stats import StepRecord


class Fanout:
    """Once ``remove`` returns, no call to that listener is under way: it may be closed."""

    def __init__(self) -> None:
        self._listeners: list[Observer] = []
        self._guard = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Observer) -> None:
        with self._guard:
            if listener not in self._listeners:
                self._listeners.append(listener)

    def remove(self, listener: Observer) -> None:
        """Take a listener out; does nothing when it is not there."""
        with self._guard:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def replace(self, old: Observer, new: Observer) -> None:
        """One listener in another's place: between two steps, so that none is missed or told twice."""
        with self._guard:
            self._listeners[self._listeners.index(old)] = new

    def on_step(self, step: StepRecord, policy: str, outcomes: Sequence[Outcome]) -> None:
        with self._guard:
            for listener in self._listeners:
                listener.on_step(step, policy, outcomes)

    def on_finish(self, request: Request) -> None:
        with self._guard:
            for listener in self._listeners:
                listener.on_finish(request)
