"""What an observer of the engine is told: every plan with what came of it, every step, every end of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Draft, Request
from recguide.engine.stats import StepRecord


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request in one step.

    ``position`` counts the tokens of its text before the step, ``round`` the drafts verified before. ``held`` is the
    draft it had at hand. ``emitted`` are the accepted drafts and the verifier's own token, of which ``kept`` were
    committed (none in a step that only drafts). ``reused`` is the branch whose drafts it has now.
    """

    request: Request
    plan: RequestPlan
    position: int
    round: int
    held: Draft | None
    emitted: Sequence[int]
    kept: int
    reused: int | None


class Observer(Protocol):
    """Called on the engine's thread, between steps of others: whatever it does, the engine waits for."""

    def on_step(self, step: StepRecord, policy: str, outcomes: Sequence[Outcome]) -> None: ...
    def on_finish(self, request: Request) -> None: ...
