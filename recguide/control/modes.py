"""Plain or drafting, by what each was seen to earn: the last word over a model of step times.

Drafting gains a few percent on a small processor, and a table of step times may be off by as much. At each load the
tokens and milliseconds of both ways to run are kept, and what earned less is tried again only now and then. Numbers of
requests that share an operating point share this too: tokens count by request, time by what a plain step should take.

A table that is a little off the other way would rule drafting out for good, since only steps that are made correct it.
So where it says that drafting loses a little, a few steps draft all the same, for their times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from recguide.control.operating import nearest_load

MEMORY = 1 - 1 / 150  # of tokens and milliseconds, a step
ENOUGH = {"plain": 6.0, "drafting": 40.0}  # steps before a way to run is judged
MARGIN, NOISE = 0.01, 0.4  # drafting is given up below 1 - MARGIN - NOISE / sqrt(its steps): tokens of a step scatter
PERIOD = 240  # steps in which each way has its turn
PLAIN_TURN, DRAFTING_TURN = 6, 24  # steps of it to time the way that is not chosen
TRIAL_TURN, TRIAL_PERIOD = 4, 24  # steps for their times, and of how many they are while drafting was not seen
PROMISING = 0.9  # of what plain steps earn: drafting that should earn less is not tried
SURE = 1.25  # drafting that earned so much of what the table says of plain steps is believed for a period, then tried


class Way(Enum):
    """How a step is run. A trial drafts to learn what such steps take."""

    PLAIN = "plain"
    DRAFTING = "drafting"
    TRIAL = "trial"


@dataclass
class Earned:
    """Tokens and time of a way to run, older steps weighing less."""

    tokens: float = 0.0
    time: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, time: float) -> None:
        self.tokens = MEMORY * self.tokens + tokens
        self.time = MEMORY * self.time + time
        self.steps = MEMORY * self.steps + 1

    @property
    def rate(self) -> float:
        """Tokens of a request while a plain step should have passed."""
        return self.tokens / self.time if self.time else 0.0


@dataclass
class Load:
    """What was seen at one load."""

    plain: Earned = field(default_factory=Earned)
    drafting: Earned = field(default_factory=Earned)
    asked: int = 0


class Modes:
    """Decides how steps are run at each load."""

    def __init__(self) -> None:
        self._loads: dict[int, Load] = {}
        self._plain_steps = 0

    def way(self, requests: int, *, wants: bool, trial_gain: float, seen: bool) -> Way:
        """How to run the next step. ``wants``: whether the model of step times would draft; ``trial_gain``: what it
        says that trials earn of plain steps; ``seen``: whether it rests on drafting steps that were made at this load.

        The first steps of all are plain: they show the pace of the machine, which drafting steps could not be told
        from.
        """
        if self._plain_steps < ENOUGH["plain"]:
            return Way.PLAIN
        load = self._loads.setdefault(nearest_load(requests), Load())
        load.asked += 1
        if not wants:
            turn = (load.asked - 1) % (PERIOD if seen else TRIAL_PERIOD)
            return Way.TRIAL if turn < TRIAL_TURN and trial_gain > PROMISING else Way.PLAIN
        turn = load.asked % PERIOD
        if not self._pays(load):
            return Way.DRAFTING if 0 < turn <= DRAFTING_TURN else Way.PLAIN
        begins = PERIOD - PLAIN_TURN if load.drafting.rate > SURE else DRAFTING_TURN + 1
        return Way.PLAIN if begins <= turn < begins + PLAIN_TURN else Way.DRAFTING

    def learn(self, requests: int, way: Way, *, tokens: int, milliseconds: float, plain_ms: float) -> None:
        """What a step without prompt rows committed and took, and what a plain one of these requests should take."""
        self._plain_steps += way is Way.PLAIN
        if way is not Way.TRIAL:  # made for its time, not to earn
            load = self._loads.setdefault(nearest_load(requests), Load())
            (load.drafting if way is Way.DRAFTING else load.plain).add(tokens / requests, milliseconds / plain_ms)

    @staticmethod
    def _pays(load: Load) -> bool:
        if load.plain.steps < ENOUGH["plain"] or load.drafting.steps < ENOUGH["drafting"]:
            return True
        return load.drafting.rate >= (1 - MARGIN - NOISE / load.drafting.steps**0.5) * load.plain.rate
