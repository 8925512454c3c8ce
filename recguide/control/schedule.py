"""A controller's load -> block schedule, for engines that take one number for each load, and what that loses.

A serving engine of today drafts a block for every request in one forward and verifies it in the next. The best block of
each load follows from the controller's samples and a cost table; the loss is against the controller's own operating
point at that load, on the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide.control.controller import Controller
from recguide.control.monitor import Monitor
from recguide.control.operating import OperatingPoints
from recguide.control.step_time import StepTime

BLOCKS = (1, 2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Entry:
    """The best ``block`` at a load (seed included; 1 is plain AR), tokens/s all requests together with it and with the
    controller, both predicted."""

    load: int
    block: int
    fixed: float
    controller: float

    @property
    def loss(self) -> float:
        """Share of the controller's throughput that the fixed block gives away."""
        return max(0.0, 1 - self.fixed / self.controller)


def best_blocks(controller: Controller, step_time: StepTime, loads: Sequence[int], context: float) -> list[Entry]:
    """One entry for each load, with ``context`` tokens in each request's cache."""
    points = OperatingPoints(controller, step_time, Monitor(controller.usual))
    # survivals of a block behind its seed
    accepted = np.cumsum(controller.samples.known.mean(0))
    extra = 1 - controller.draft_shift

    def rate(load: int, block: int) -> float:
        if block == 1:
            return load / step_time.predict(load, load, 0, context)
        drafts = block - 1
        draft = step_time.predict(load, 0, load * (drafts + extra), context)
        verify = step_time.predict(load, load * block, 0, context)
        return load * (1 + accepted[drafts - 1]) / (draft + verify)

    made = []
    for load in loads:
        best = max((b for b in BLOCKS if b <= controller.places + 1), key=lambda block: rate(load, block))
        point = points.at(load, context).rate
        made.append(Entry(load, best, 1e3 * rate(load, best), 1e3 * max(point, rate(load, best))))
    return made
