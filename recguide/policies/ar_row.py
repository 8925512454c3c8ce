"""AR-row drafting: the forward that drafts also commits one autoregressive token."""

from __future__ import annotations

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, TAIL, Policy, continuation


class ArRow(Policy):
    name = "ar-row"
    summary = "draft behind an autoregressive row: the draft forward commits a token too"
    knobs = (BLOCK, TAIL)

    def plan_request(self, request: Request) -> RequestPlan:
        if request.draft:
            return RequestPlan(len(request.draft.tokens))
        return RequestPlan(0, (continuation(request, 0, self.block - 1),))
