"""Plain, drafting or a trial: how the next step is run, so that the times of all of them stay known.

The best plans follow from what steps cost, and only steps that are made show that. Where drafting is planned, a few
steps are plain now and then, unless it gains so much that no doubt matters. Where the model of step times sees a small
loss in drafting, it would never be corrected either: there a few steps draft all the same, for their times. And where
drafting is planned, but has earned less than plain steps would have, whatever the reason, it rests for a while.
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
PROMISING, HOPED = 0.9, 0.8  # of what plain steps earn: drafting that should earn less is not tried; where not seen yet
# what drafting earned is judged by many steps of requests, since requests differ: kept of it a step, and least steps
MEMORY, LEAST = 0.998, 400
LOSING, REST = 0.98, 480  # of what plain steps would have earned: drafting that earned less rests for so many steps
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
        self._until: Counter[int] = Counter()  # by load: when drafting has rested
        # by load: tokens, those of plain steps in the same time, and steps
        self._earned: dict[int, tuple[float, float, int]] = {}

    def while_drafting(self, requests: int, gain: float) -> Way:
        """How to run the next step where the operating point drafts, to earn ``gain`` times what plain steps do."""
        turn = self._turn(requests)
        timing = 0 <= turn % PERIOD - PLAIN_FROM < PLAIN_TURN and gain < SURE
        return Way.PLAIN if timing or turn < self._until[nearest_load(requests)] else Way.DRAFTING

    def earned(self, requests: int, tokens: int, plain_tokens: float) -> None:
        """A step that was planned as drafting committed ``tokens``, where plain steps would have made ``plain_tokens``
        in its time."""
        load = nearest_load(requests)
        made, plain, steps = self._earned.get(load, (0.0, 0.0, 0))
        kept = MEMORY**requests
        made, plain, steps = kept * made + tokens, kept * plain + plain_tokens, steps + requests
        self._earned[load] = made, plain, steps
        if steps >= LEAST and made < LOSING * plain:
            self._until[load] = self._asked[load] + REST
            del self._earned[load]

    def while_plain(self, requests: int, trial_gain: Callable[[], float], *, seen: bool) -> Way:
        """The same where the point does not draft. ``trial_gain``: what trials should earn of plain steps, asked for
        when one is due; ``seen``: whether drafting steps were made at this load."""
        period, least = (PERIOD, PROMISING) if seen else (TRIAL_PERIOD, HOPED)
        trying = self._turn(requests) % period < TRIAL_TURN and trial_gain() > least
        return Way.TRIAL if trying else Way.PLAIN

    def _turn(self, requests: int) -> int:
        load = nearest_load(requests)
        self._asked[load] += 1
        return self._asked[load] - 1
