"""Adaptive window: the block doubles after full acceptance and halves when at most half of it was accepted."""

from __future__ import annotations

from typing import Any

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.errors import RecGuideError
from recguide.policies.base import Knob, Policy, draft_only

LOW = Knob(name="low", default=4, low=2, high=64, unit="tokens", help="smallest block")
HIGH = Knob(name="high", default=16, low=2, high=64, unit="tokens", help="largest block")


class Window(Policy):
    name = "window"
    summary = "linear self-speculation with a block that doubles or halves with success"
    knobs = (LOW, HIGH)

    def __init__(self, **values: Any):
        super().__init__(**values)
        if self.low > self.high:
            raise RecGuideError(f"policy window: low is {self.low}, above high {self.high}; give low <= high")

    def plan_request(self, request: Request) -> RequestPlan:
        if request.draft:
            return RequestPlan(len(request.draft.tokens))
        return draft_only(request, self._block(request) - 1)

    def _block(self, request: Request) -> int:
        """The block follows from the history alone: replay what is new since last time."""
        block, seen = request.memory.get(self.spec, (self.low, 0))
        for drafted, accepted in request.accepted_history[seen:]:
            if accepted == drafted:
                block = min(2 * block, self.high)
            elif 2 * accepted <= drafted:
                block = max(block // 2, self.low)
        request.memory[self.spec] = (block, len(request.accepted_history))
        return block
