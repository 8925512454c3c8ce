"""Operating points by load: solved once for each number of requests and stretch of context, and again as news come in.

A point says at which prices the device is used best. Step times come from the cost table, drafts from the controller's
samples, moved by what the monitor has learned since.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide.control.controller import Controller
from recguide.control.forecast import shifted
from recguide.control.monitor import Monitor
from recguide.control.planner import Operating, Samples, Shape, solve
from recguide.control.step_time import StepTime

CONTEXT_STEP = 128  # tokens of context that share a point
NEWS = 400  # reached positions after which a point is solved again
MARGIN = 0.01  # a change between drafting and plain AR must gain this much


class OperatingPoints:
    """``StepTime`` and ``Controller`` to prices. Not thread-safe: one engine's thread asks."""

    def __init__(self, controller: Controller, step_time: StepTime, monitor: Monitor):
        self._controller, self._time, self._monitor = controller, step_time, monitor
        self.shape = Shape(1 - controller.draft_shift, controller.open_chance)
        self._points: dict[tuple[int, int], tuple[Operating, int]] = {}
        self._times: dict[tuple[int, int, int, int], float] = {}

    def at(self, requests: int, context: float) -> Operating:
        """The point for so many requests with so many tokens of context each."""
        key = (requests, int(context) // CONTEXT_STEP)
        found = self._points.get(key)
        if found is None or self._monitor.observed - found[1] > NEWS:
            point = self._solve(*key, found[0] if found else None)
            self._points[key] = point, self._monitor.observed
            self._times.clear()
            return point
        return found[0]

    def milliseconds(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """A step's predicted time."""
        key = (requests, causal_rows, draft_rows, int(context) // CONTEXT_STEP)
        if key not in self._times:
            self._times[key] = self._time.predict(requests, causal_rows, draft_rows, _middle(key[3]))
        return self._times[key]

    def _solve(self, requests: int, stretch: int, before: Operating | None) -> Operating:
        def time(causal: float, draft: float) -> float:
            spent = self._time.predict(requests, requests * causal, requests * draft, _middle(stretch))
            return spent / requests

        margin = 0.0 if before is None else -MARGIN if before.drafts else MARGIN
        return solve(time, self._samples(), self.shape, margin=margin)

    def _samples(self) -> Samples:
        """The controller's drafts, recalibrated."""
        samples, monitor = self._controller.samples, self._monitor
        if not monitor.offsets.any():
            return samples
        moved = {}
        for name, known in (("open", False), ("known", True)):
            survival = getattr(samples, name)
            before = np.concatenate((np.ones((len(survival), 1)), survival[:, :-1]), 1)
            conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)
            offset = monitor.offset(np.full(len(survival), known), survival.shape[1])
            moved[name] = np.cumprod(shifted(conditional, offset), 1)
        return replace(samples, **moved)


def _middle(stretch: int) -> float:
    return (stretch + 0.5) * CONTEXT_STEP
