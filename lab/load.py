"""The load generator: keeps a pattern of requests going on an engine thread. Called by one thread only, the driver."""

from __future__ import annotations

import time
from collections.abc import Callable

from recguide.lab.arrivals import Pattern, Steps, pattern_of
from recguide.lab.settings import LabSettings
from recguide.lab.supply import Supply

from recguide.engine.request import Delta, Request
from recguide.engine.runner import EngineThread

OF_PATTERN = ("pattern", "concurrency", "rate", "period", "seed")  # settings that a pattern is made from
QUEUE = 64  # requests that may wait; arrivals beyond it are turned away, so that memory stays bounded


class Load:
    """``wake`` is called on the engine's thread whenever a request ends. ``turned_away`` counts refused arrivals."""

    def __init__(self, runner: EngineThread, supply: Supply, wake: Callable[[], None]):
        self._runner, self._supply, self._wake = runner, supply, wake
        self._under_way: dict[int, Request] = {}
        self._running_since: float | None = None
        self._ran = 0.0
        self._pattern: Pattern | None = None
        self._settings: LabSettings | None = None
        self.turned_away = 0
        self.submitted = 0

    @property
    def now(self) -> float:
        """Seconds of running: a pause stops this clock, so that arrivals do not pile up."""
        return self._ran + (0.0 if self._running_since is None else time.perf_counter() - self._running_since)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def hold(self) -> None:
        """No arrivals until ``go``."""
        self._ran, self._running_since = self.now, None

    def go(self) -> None:
        if self._running_since is None:
            self._running_since = time.perf_counter()

    def follow(self, settings: LabSettings) -> None:
        """Other settings: a new pattern where its own fields changed, and less under way where the load shrank."""
        old = self._settings
        same = old is not None and all(getattr(old, name) == getattr(settings, name) for name in OF_PATTERN)
        if old is None or (old.seed, old.category) != (settings.seed, settings.category):
            self._supply.restart(settings.seed, settings.category)
        self._settings = settings
        if not same:
            self._pattern = pattern_of(settings, self.now)
        self._shed(settings.concurrency)

    def top_up(self) -> float | None:
        """Submit what is due; seconds until there may be more, or None when only an end can bring more."""
        if self._pattern is None:
            return None
        if isinstance(self._pattern, Steps):
            self._shed(self._pattern.level(self.now))
        for _ in range(self._pattern.due(self.now, self.under_way)):
            self._submit()
        following = self._pattern.next(self.now)
        return None if following is None else max(0.0, following - self.now)

    def _submit(self) -> None:
        if self.under_way >= self._settings.concurrency + QUEUE:
            self.turned_away += 1
            return
        ids, params = self._supply.next(self._settings)
        request = self._runner.submit(ids, params, self._sink)
        self.submitted += 1
        if not request.finished:  # it may have ended before we get here
            self._under_way[request.id] = request
            if request.finished:
                self._under_way.pop(request.id, None)

    def _sink(self, item: Delta | BaseException) -> None:
        """On the engine's thread."""
        if isinstance(item, BaseException):
            self._under_way.clear()
        elif item.finish_reason:
            self._under_way.pop(item.request.id, None)
        else:
            return
        self._wake()

    def _shed(self, level: int) -> None:
        """End the newest requests beyond a smaller load: a person who lowers it wants to see that now."""
        alive = [r for r in list(self._under_way.values()) if not r.finished]
        for request in alive[level:]:
            self._runner.abort(request)
