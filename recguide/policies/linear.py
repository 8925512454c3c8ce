"""Linear self-speculation: a draft forward, then a verify forward (the released Nemotron method)."""

from __future__ import annotations

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, Policy, draft_only


class Linear(Policy):
    name = "linear"
    summary = "draft a block in one forward, verify it in the next"
    knobs = (BLOCK,)

    def plan_request(self, request: Request) -> RequestPlan:
        if request.draft:
            return RequestPlan(len(request.draft.tokens))
        return draft_only(request, self.block - 1)
