"""Plain or drafting, by what each was seen to earn: the last word over a model of step times.

Drafting gains a few percent on a small processor, and a table of step times may be off by as much. At each load the
tokens and milliseconds of both ways to run are kept, and what earned less is tried again only now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY = 1 - 1 / 150  # of tokens and milliseconds, a step
ENOUGH = {"plain": 5.0, "drafting": 40.0}  # steps before a way to run is judged
MARGIN, NOISE = 0.01, 0.4  # drafting is given up below 1 - MARGIN - NOISE / sqrt(its steps): tokens of a step scatter
PERIOD = 240  # steps in which each way has its turn
PLAIN_TURN, DRAFTING_TURN = 6, 24  # steps of it to time the way that is not chosen


@dataclass
class Earned:
    """Tokens and milliseconds of a way to run, older steps weighing less."""

    tokens: float = 0.0
    milliseconds: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, milliseconds: float) -> None:
        self.tokens = MEMORY * self.tokens + tokens
        self.milliseconds = MEMORY * self.milliseconds + milliseconds
        self.steps = MEMORY * self.steps + 1

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.milliseconds if self.milliseconds else 0.0


@dataclass
class Load:
    """What was seen at one number of requests."""

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
        load = self._loads.setdefault(requests, Load())
        load.asked += 1
        turn = load.asked % PERIOD
        if self._pays(load):
            return not 0 < turn <= PLAIN_TURN
        return PLAIN_TURN < turn <= PLAIN_TURN + DRAFTING_TURN

    def learn(self, requests: int, *, drafted: bool, tokens: int, milliseconds: float) -> None:
        """What a step without prompt rows committed and took."""
        load = self._loads.setdefault(requests, Load())
        (load.drafting if drafted else load.plain).add(tokens, milliseconds)

    @staticmethod
    def _pays(load: Load) -> bool:
        if load.plain.steps < ENOUGH["plain"] or load.drafting.steps < ENOUGH["drafting"]:
            return True
        return load.drafting.rate >= (1 - MARGIN - NOISE / load.drafting.steps**0.5) * load.plain.rate
