"""Block by the moving average of a request's accepted drafts, with hysteresis (SGLang's adaptive speculation).

A request should draft one token more than it lately had accepted: it moves up from a tier once the rounded average
plus one exceeds the tier's draft tokens, and down once the tier below would do even if the average were ``gap`` higher.
As in SGLang the average is over what was accepted of what was drafted; unlike there each request has its own, and
there is no warm-up, since answers here are short. Drafts ride behind an autoregressive row, as in ``ar-row``.
"""

from __future__ import annotations

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import Knob, Policy, draft_or_verify
from recguide.policies.knobs import BlocksKnob

BLOCKS = BlocksKnob(
    name="blocks", default=(2, 4, 8), low=2, high=64, unit="tokens", help="blocks to choose from, seed included"
)
ALPHA = Knob(name="alpha", default=0.2, low=0.01, high=1.0, unit="", help="weight of the newest round in the average")
GAP = Knob(name="gap", default=0.25, low=0.0, high=8.0, unit="tokens", help="hysteresis on the way down")


class EmaTiers(Policy):
    name = "ema-tiers"
    summary = "a request's block follows the moving average of its accepted drafts"
    knobs = (BLOCKS, ALPHA, GAP)

    def plan_request(self, request: Request) -> RequestPlan:
        return draft_or_verify(request, self.blocks[self._tier(request)])

    def _tier(self, request: Request) -> int:
        """The tier follows from the history alone: replay what is new since last time."""
        start = len(self.blocks) // 2
        tier, average, seen = request.memory.get(self.spec, (start, float(self.blocks[start] - 2), 0))
        for _, accepted in request.accepted_history[seen:]:
            average += self.alpha * (accepted - average)
            tier = self._moved(tier, average)
        request.memory[self.spec] = (tier, average, len(request.accepted_history))
        return tier

    def _moved(self, tier: int, average: float) -> int:
        """At most one tier up or down. A tier of block b drafts b - 1 tokens: it is too small from b - 1.5 on."""
        if tier + 1 < len(self.blocks) and average > self.blocks[tier] - 1.5:
            return tier + 1
        if tier and average <= self.blocks[tier - 1] - 1.5 - self.gap:
            return tier - 1
        return tier
