"""Plain or drafting, by what each was seen to earn: the last word over a model of step times.

Drafting gains a few percent on a small processor, and a table of step times may be off by as much. At each load the
tokens and milliseconds of both ways to run are kept, and what earned less is tried again only now and then. Numbers of
requests that share an operating point share this too: tokens count by request, time by what a plain step should take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recguide.control.operating import nearest_load

MEMORY = 1 - 1 / 150  # of tokens and milliseconds, a step
ENOUGH = {"plain": 5.0, "drafting": 40.0}  # steps before a way to run is judged
MARGIN, NOISE = 0.01, 0.4  # drafting is given up below 1 - MARGIN - NOISE / sqrt(its steps): tokens of a step scatter
PERIOD = 240  # steps in which each way has its turn
PLAIN_TURN, DRAFTING_TURN = 6, 24  # steps of it to time the way that is not chosen
SURE = 1.25  # drafting that earned so much of what the table says of plain steps is believed for a period, then tried


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
    """Decides between plain and drafting steps at each load. ``wants`` is what the model would do."""

    def __init__(self) -> None:
        self._loads: dict[int, Load] = {}

    def drafts(self, requests: int, *, wants: bool) -> bool:
        """Whether the next step may draft. Where the model sees no gain, nothing is tried."""
        if not wants:
            return False
        load = self._loads.setdefault(nearest_load(requests), Load())
        load.asked += 1
        turn = load.asked % PERIOD
        if not self._pays(load):
            return 0 < turn <= DRAFTING_TURN
        begins = PERIOD - PLAIN_TURN if load.drafting.rate > SURE else DRAFTING_TURN + 1
        return not begins <= turn < begins + PLAIN_TURN

    def learn(self, requests: int, *, drafted: bool, tokens: int, milliseconds: float, plain_ms: float) -> None:
        """What a step without prompt rows committed and took, and what a plain one of these requests should take."""
        load = self._loads.setdefault(nearest_load(requests), Load())
        (load.drafting if drafted else load.plain).add(tokens / requests, milliseconds / plain_ms)

    @staticmethod
    def _pays(load: Load) -> bool:
        if load.plain.steps < ENOUGH["plain"] or load.drafting.steps < ENOUGH["drafting"]:
            return True
        return load.drafting.rate >= (1 - MARGIN - NOISE / load.drafting.steps**0.5) * load.plain.rate
