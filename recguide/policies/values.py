"""What a block is expected to commit, by what is known of a request before it drafts: a table learned while running.

A cell is a state of the request. It counts, per draft position, how often that position was reached and accepted; so a
round informs every smaller block, and a block that was accepted whole says nothing of the positions behind it. Cells
with few rounds lean on all requests together, and those on a constant.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

PRIOR = 0.6  # chance that a reached draft token is accepted, before anything was seen
WEIGHT = 8.0  # rounds by which a cell, and all cells together, lean on what they start from


@dataclass
class Counts:
    """How often each draft position was compared, and accepted."""

    reached: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, drafted: int, accepted: int) -> None:
        """One verification: the first ``accepted`` of ``drafted`` tokens matched, the next was compared and did not."""
        self.accepted.update(range(accepted))
        self.reached.update(range(min(accepted + 1, drafted)))

    def chances(self, prior: list[float]) -> list[float]:
        """P(position accepted | reached), leaning on ``prior``."""
        return [(self.accepted[j] + WEIGHT * p) / (self.reached[j] + WEIGHT) for j, p in enumerate(prior)]


@dataclass
class ValueTable:
    """Expected accepted drafts by state. A state is anything hashable; None is a request nothing is known of."""

    pooled: Counts = field(default_factory=Counts)
    cells: dict[Hashable, Counts] = field(default_factory=dict)

    def learn(self, state: Hashable, drafted: int, accepted: int) -> None:
        """One verification of a draft that was made in this state."""
        self.pooled.add(drafted, accepted)
        if state is not None:
            self.cells.setdefault(state, Counts()).add(drafted, accepted)

    def accepted(self, state: Hashable, drafts: int) -> list[float]:
        """Expected accepted tokens of a draft of 0, 1, ... ``drafts`` tokens [drafts + 1]."""
        chances = self.pooled.chances([PRIOR] * drafts)
        if state in self.cells:
            chances = self.cells[state].chances(chances)
        survival = itertools.accumulate(chances, operator.mul)
        return list(itertools.accumulate(survival, initial=0.0))
