"""When requests arrive: pure functions of running time and of how many are under way, so that tests need no clock.

A pattern knows nothing of prompts, engines or threads. Time is that of the session while it is not paused.
"""

from __future__ import annotations

import math
import random
from typing import Protocol

from recguide.lab.settings import LabSettings

SPARE = 1  # requests that wait in a closed loop, so that a place is filled in the step after it got free


class Pattern(Protocol):
    """``due``: how many requests to submit now. ``next``: when to ask again at the latest; None: when one ends."""

    def due(self, now: float, under_way: int) -> int: ...
    def next(self, now: float) -> float | None: ...


class Closed:
    """Always ``level`` requests under way and a spare one waiting."""

    def __init__(self, level: int):
        self.level = level

    def due(self, now: float, under_way: int) -> int:
        return max(0, self.level + SPARE - under_way)

    def next(self, now: float) -> float | None:
        return None


class Poisson:
    """Independent arrivals at ``rate`` per second, from ``start`` on."""

    def __init__(self, rate: float, seed: int, start: float):
        self._rate, self._draw = rate, random.Random(f"poisson/{seed}")
        self._at = start

    def due(self, now: float, under_way: int) -> int:
        count = 0
        while self._at <= now:
            self._at += self._draw.expovariate(self._rate)
            count += 1
        return count

    def next(self, now: float) -> float | None:
        return self._at


class Bursts:
    """``size`` requests at once, every ``period`` seconds."""

    def __init__(self, size: int, period: float, start: float):
        self._size, self._period, self._at = size, period, start

    def due(self, now: float, under_way: int) -> int:
        if now < self._at:
            return 0
        # one burst however late we are: a pause or a busy machine must not pile them up
        self._at += self._period * (1 + math.floor((now - self._at) / self._period))
        return self._size

    def next(self, now: float) -> float | None:
        return self._at


class Steps:
    """A closed loop whose level walks 1, half, all, half of ``high``, each for ``period`` seconds."""

    def __init__(self, high: int, period: float, start: float):
        half = math.ceil(high / 2)
        self._levels, self._period, self._start = (1, half, high, half), period, start

    def level(self, now: float) -> int:
        return self._levels[self._stage(now) % len(self._levels)]

    def due(self, now: float, under_way: int) -> int:
        return Closed(self.level(now)).due(now, under_way)

    def next(self, now: float) -> float | None:
        return self._start + (self._stage(now) + 1) * self._period

    def _stage(self, now: float) -> int:
        return math.floor((now - self._start) / self._period)


def pattern_of(settings: LabSettings, now: float) -> Pattern:
    """The pattern that the settings name, starting now."""
    match settings.pattern:
        case "poisson":
            return Poisson(settings.rate, settings.seed, now)
        case "bursts":
            return Bursts(settings.concurrency, settings.period, now)
        case "steps":
            return Steps(settings.concurrency, settings.period, now)
    return Closed(settings.concurrency)
