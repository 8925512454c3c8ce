"""What the lab keeps of what the engine does: numbers of each step, and the rounds of one request, both bounded.

Called on the engine's thread, so it only counts and keeps references; texts and curves are made by whoever draws.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from recguide.lab.controller import expected_ms, survival
from recguide.lab.ring import Ring

from recguide.engine.drawing import branch_kind
from recguide.engine.observe import Outcome
from recguide.engine.request import Request
from recguide.engine.stats import StepRecord

STEPS = 8192  # some minutes of steps
ROUNDS = 48
RECENT = 600  # verifications and branches that the mixes are counted over
KINDS = ("draft", "correction", "continuation", "open")
COLUMNS = (
    "at",  # perf_counter, s
    "seconds",
    "requests",
    "rows",
    "drafting",  # rows behind the adapter's first
    "prefill",
    "trunk",
    *KINDS,
    "committed",
    "context",
    "expected",  # ms that the policy expected, or NaN
    "policy",  # number in Watcher.policies
)


@dataclass(frozen=True, slots=True)
class Round:
    """One request in one step, and what was predicted of the draft it held."""

    outcome: Outcome
    survival: Sequence[float]
    learned: bool
    step: int


class Watcher:
    """An observer of the engine."""

    def __init__(self) -> None:
        self.steps = Ring(COLUMNS, STEPS)
        self.policies: list[str] = []
        self.request: Request | None = None
        self.rounds: deque[Round] = deque(maxlen=ROUNDS)
        self.blocks: deque[int] = deque(maxlen=RECENT)
        self.branches: deque[tuple[str, bool]] = deque(maxlen=RECENT)
        self.predictions: deque[tuple[float, bool]] = deque(maxlen=4 * RECENT)

    def clear_predictions(self) -> None:
        """Forget what an earlier policy predicted: curves and mixes are of one policy."""
        for kept in (self.blocks, self.branches, self.predictions):
            kept.clear()

    def on_step(self, step: StepRecord, policy: str, outcomes: Sequence[Outcome]) -> None:
        rows: Counter[str] = Counter()
        for outcome in outcomes:
            self._count(outcome, rows)
            self._follow(outcome, step.index)
        expected = expected_ms(outcomes)
        context = sum(o.position for o in outcomes) / len(outcomes) if outcomes else 0.0
        self.steps.add(
            time.perf_counter(),
            step.seconds,
            step.requests,
            step.rows,
            step.draft_rows,
            step.prefill_rows,
            rows["trunk"],
            *(rows[kind] for kind in KINDS),
            step.committed,
            context,
            math.nan if expected is None else expected,
            self._number(policy),
        )

    def on_finish(self, request: Request) -> None:
        """The text of a finished request stays on show until another one makes a step."""

    def _number(self, policy: str) -> int:
        if policy not in self.policies:
            self.policies.append(policy)
        return self.policies.index(policy)

    def _count(self, outcome: Outcome, rows: Counter[str]) -> None:
        plan = outcome.plan
        rows["trunk"] += 0 if plan.verify is None else plan.verify + 1
        for number, branch in enumerate(plan.branches):
            kind = branch_kind(branch, plan.verify)
            rows[kind] += branch.rows
            if plan.verify is not None:
                self.branches.append((kind, number == outcome.reused))
        if plan.verify is not None:
            self.blocks.append(plan.verify)

    def _follow(self, outcome: Outcome, step: int) -> None:
        """Predictions are scored for every request; rounds are kept of one until it ends."""
        values, learned = survival(outcome)
        for j in range(min(len(values), len(outcome.emitted), outcome.plan.verify or 0)):
            before = values[j - 1] if j else 1.0
            chance = values[j] / before if before > 0 else 0.0
            self.predictions.append((chance, j < len(outcome.emitted) - 1))
        if self.request is None or (self.request.finished and outcome.request is not self.request):
            self.request = outcome.request
            self.rounds.clear()
        if outcome.request is self.request:
            self.rounds.append(Round(outcome, values, learned, step))
