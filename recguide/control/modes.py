"""Plain, drafting or a trial: how the next step is run, so that the times of all of them stay known.

The best plans follow from what steps cost, and only steps that are made show that. Where drafting is planned, a few
steps are plain now and then, unless it gains so much that no doubt matters. Where the model of step times sees a small
loss in drafting, it would never be corrected either: there a few steps draft all the same, for their times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

from recguide.control.operating import nearest_load

FIRST = 6  # plain steps at the start: they show the pace of the machine, which drafting steps could not be told from
PERIOD = 240  # steps in which the way that is not chosen has a turn
PLAIN_FROM, PLAIN_TURN = 25, 6
TRIAL_TURN, TRIAL_PERIOD = 4, 24  # steps of a trial, and how often one comes while drafting was not seen
PROMISING = 0.9  # of what plain steps earn: drafting that should earn less is not tried
SURE = 1.25  # drafting that should earn so much of what plain steps do goes on without any


class Way(Enum):
    """How a step is run. A trial drafts to learn what such steps take."""

    PLAIN = "plain"
    DRAFTING = "drafting"
    TRIAL = "trial"


class Modes:
    """Decides how steps are run, at each load for itself."""

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()

    def while_drafting(self, requests: int, gain: float) -> Way:
        """How to run the next step where the operating point drafts, to earn ``gain`` times what plain steps do."""
        timing = 0 <= self._turn(requests) % PERIOD - PLAIN_FROM < PLAIN_TURN and gain < SURE
        return Way.PLAIN if timing else Way.DRAFTING

    def while_plain(self, requests: int, trial_gain: Callable[[], float], *, seen: bool) -> Way:
        """The same where the point does not draft. ``trial_gain``: what trials should earn of plain steps, asked for
        when one is due; ``seen``: whether drafting steps were made at this load."""
        trying = self._turn(requests) % (PERIOD if seen else TRIAL_PERIOD) < TRIAL_TURN and trial_gain() > PROMISING
        return Way.TRIAL if trying else Way.PLAIN

    def _turn(self, requests: int) -> int:
        load = nearest_load(requests)
        self._asked[load] += 1
        return self._asked[load] - 1
