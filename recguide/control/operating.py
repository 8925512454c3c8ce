"""Operating points by load: solved once for each number of requests and stretch of context, and again as news come in.

A point says at which prices the device is used best. Step times come from the cost table, drafts from the controller's
samples, moved by what the monitor has learned since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from recguide.control.choose import Tariff
from recguide.control.controller import Controller
from recguide.control.features import GROUPS
from recguide.control.forecast import shifted
from recguide.control.monitor import Monitor
from recguide.control.planner import Shape
from recguide.control.refine import Errors
from recguide.control.solve import Operating, Samples, solve
from recguide.control.step_time import StepTime

CONTEXT_STEP = 384  # tokens of context that share a point
LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # a load shares the point of the nearest one
PREPARED = 8  # loads that are solved beforehand
SOON, LASTING = 16, 256  # steps after which a point is looked at again, with what has been learned since: 16, 64, 256
PATIENCE, LONGEST = 48, 384  # steps from one solving, which takes as long as a few steps, to the next: 48, 96, ...
KEPT = 4096  # told times that are kept, so that a long run does not gather them
PROBES = ((1, 0), (3, 0), (1, 2), (2, 4))  # causal and draft rows of steps whose times show whether prices still hold
SAME, ODDS = 0.1, 2.0  # times within a tenth of plain ones, and log-odds within ODDS times that: the point is kept
TRIAL_DRAFTS = 2  # drafts of every request in steps that are made for their times
BEGIN, END = 0.03, -0.01  # drafting must gain so much to begin, for a step that drafts is planned longer, and to go on


@cache
def nearest_load(requests: int) -> int:
    """The load that stands for so many requests."""
    return min(LOADS, key=lambda known: abs(known - requests))


@dataclass(frozen=True)
class Point:
    """How to run at a load: for requests of each history bucket the operating point that they reach alone, taking it
    that a request stays in its bucket, and its prices in plain numbers.

    A request has its whole text to write, so that a token of it is worth the time that its own kind pays for one.
    ``errors``: what steps were taken to cost, to what was told of them. Plans are chosen with these, too: at prices
    that belong to other times nothing might pay, or everything.
    """

    buckets: tuple[Operating, ...]
    tariffs: tuple[Tariff, ...]
    errors: Errors

    @cached_property
    def drafts(self) -> bool:
        """Whether anyone drafts at all."""
        return any(bucket.drafts for bucket in self.buckets)

    @cached_property
    def rate(self) -> float:
        """Tokens a millisecond of all requests together; buckets are about equally common."""
        return fmean(tariff.rate for tariff in self.tariffs)

    def slowed(self, times: float) -> Point:
        """The same where all steps take so many times as long: rows cost as many tokens, and tokens come slower."""
        return replace(self, tariffs=tuple(replace(tariff, rate=tariff.rate / times) for tariff in self.tariffs))


@dataclass
class _Solved:
    """A point, what it was found from, whether drafting steps were seen by then, how often it will be asked for, and
    how often it was."""

    point: Point
    grounds: np.ndarray
    seen: bool
    lasting: int = SOON
    asked: int = 0


class OperatingPoints:
    """``StepTime`` and ``Controller`` to prices. Not thread-safe: one engine's thread asks. ``price`` multiplies what
    rows cost; ``tail`` and ``freedom`` as in Shape. Milliseconds are at the pace of the table: plans do not change when
    the whole machine becomes slower."""

    def __init__(
        self,
        controller: Controller,
        step_time: StepTime,
        monitor: Monitor,
        *,
        price: float = 1.0,
        tail: int = 0,
        **freedom: Any,
    ):
        self._controller, self._time, self._monitor, self._price = controller, step_time, monitor, price
        self.shape = Shape(1 - controller.draft_shift, controller.open_chance, tail, **freedom)
        self._points: dict[tuple[int, int], _Solved] = {}
        self._accepted = controller.open_chance * float(controller.samples.open[:, :TRIAL_DRAFTS].sum(1).mean())
        self._asked, self._patience, self._patient_until = 0, PATIENCE, 0
        self._told = lru_cache(maxsize=KEPT)(step_time.told)

    def at(self, requests: int, context: float) -> Point:
        """The point for so many requests with so many tokens of context each; for a while one of another context or
        one that is out of date, so that no two steps in a row wait for a solution."""
        self._asked += 1
        key = (nearest_load(requests), int(context) // CONTEXT_STEP)
        found = self._points.get(key)
        seen = self._time.drafting_seen(key[0])
        known = found or self._nearest(*key)
        if known is not None:
            known.asked += 1
            current = known is found and found.asked <= found.lasting and found.seen == seen
            if current or self._asked < self._patient_until:
                return known.point
        return self._look_again(key, found, known, seen)

    def _look_again(self, key: tuple[int, int], found: _Solved | None, known: _Solved | None, seen: bool) -> Point:
        grounds = self._grounds(*key)
        kept = _kept(known, grounds) if known else None
        if kept is None:
            point = self._solve(*key, found.point if found else None, known.point if known else None)
            self._patient_until = self._asked + self._patience
            self._patience = min(2 * self._patience, LONGEST)
        else:
            point, grounds = kept
        lasting = min(4 * found.lasting, LASTING) if found else SOON
        self._points[key] = _Solved(point, grounds, seen, lasting)
        return point

    def trial_gain(self, requests: int, context: float) -> float:
        """What a step in which everybody drafts and one that verifies should earn of what two plain ones do."""
        plain, drafting, verifying = (
            self._predict(requests, requests + c, d, context)
            for c, d in ((0, 0), (0, requests * TRIAL_DRAFTS), (requests * TRIAL_DRAFTS, 0))
        )
        return (2 + self._accepted) * plain / (drafting + verifying)

    def _grounds(self, requests: int, stretch: int) -> np.ndarray:
        """What a point follows from, as numbers that mean the same where they differ by less than SAME: logarithms of
        step times, and log-odds of drafts."""
        context = _middle(stretch)
        times = [self._predict(requests, requests * c, requests * d, context) for c, d in PROBES]
        return np.concatenate((np.log(times), self._monitor.offsets.ravel() / ODDS))

    def _nearest(self, requests: int, stretch: int) -> _Solved | None:
        """The solved point of the same load whose context is nearest."""
        near = [(abs(s - stretch), solved) for (count, s), solved in self._points.items() if count == requests]
        return min(near, key=lambda found: found[0])[1] if near else None

    def prepare(self) -> None:
        """Solve the usual loads now, so that no step has to wait for it."""
        for load in LOADS[:PREPARED]:
            self.at(load, 0)
        self._patience, self._patient_until = PATIENCE, self._asked + PATIENCE  # nobody has waited for these

    def milliseconds(self, point: Point, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """A step's time as ``point`` takes it, at the pace of the table."""
        middle = _middle(int(context) // CONTEXT_STEP)
        return point.errors.corrected(self._told, requests, causal_rows, draft_rows, middle)

    def _predict(self, requests: int, causal_rows: float, draft_rows: float, context: float) -> float:
        """A step's time as it is believed now, at the pace of the table."""
        errors = self._time.errors(requests)
        return errors.corrected(self._time.told, requests, causal_rows, draft_rows, context)

    def _solve(self, requests: int, stretch: int, before: Point | None, near: Point | None) -> Point:
        """``before``: what was done at this load, which is kept to for small gains; ``near``: where to start from."""
        errors, context = self._time.errors(requests), _middle(stretch)

        def time(causal: float, draft: float) -> float:
            return errors.corrected(self._time.told, requests, requests * causal, requests * draft, context) / requests

        samples, buckets = self._samples(), []
        for bucket in range(samples.buckets):
            margin = END if before and before.buckets[bucket].drafts else BEGIN
            start = near.buckets[bucket] if near else buckets[-1] if buckets else None
            buckets.append(solve(time, samples.only(bucket), self.shape, margin=margin, near=start))
        tariffs = tuple(Tariff.of(bucket.prices, self.shape, self._price) for bucket in buckets)
        return Point(tuple(buckets), tariffs, errors)

    def _samples(self) -> Samples:
        """The controller's drafts, recalibrated."""
        samples, monitor = self._controller.samples, self._monitor
        if not monitor.offsets.any():
            return samples
        moved = {}
        for name in GROUPS:
            survival = getattr(samples, name)
            before = np.concatenate((np.ones((len(survival), 1)), survival[:, :-1]), 1)
            conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)
            offset = monitor.offset(np.full(len(survival), GROUPS.index(name)), survival.shape[1])
            moved[name] = np.cumprod(shifted(conditional, np.exp(offset)), 1)
        return replace(samples, **moved)


def _kept(known: _Solved, grounds: np.ndarray) -> tuple[Point, np.ndarray] | None:
    """The known point at the pace of plain steps, and what it follows from there; None where it does not follow."""
    moved = grounds - known.grounds
    level = moved[0]
    moved[: len(PROBES)] -= level
    return (known.point.slowed(np.exp(level)), grounds - moved) if np.abs(moved).max() < SAME else None


def _middle(stretch: int) -> float:
    return (stretch + 0.5) * CONTEXT_STEP
