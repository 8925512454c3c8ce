"""Linear self-speculation: a draft forward, then a verify forward (the released Nemotron method)."""

from __future__ import annotations

from dataclasses import replace

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, Knob, Policy, draft_only

THRESHOLD = Knob(
    name="threshold",
    default=0.0,
    low=0.0,
    high=1.0,
    unit="",
    help="reveal only drafts this probable, and draft again for the rest (0: one draft forward)",
)


class Linear(Policy):
    name = "linear"
    summary = "draft a block in one forward (or several), verify it in the next"
    knobs = (BLOCK, THRESHOLD)

    @property
    def needs_signals(self) -> bool:
        return self.threshold > 0

    def plan_request(self, request: Request) -> RequestPlan:
        if request.draft:
            return RequestPlan(len(request.draft.tokens))
        plan = draft_only(request, len(request.known) or self.block - 1)
        if plan.verify is not None or request.draft_shift:
            return plan  # drafting in several forwards reveals masks at their own positions
        branches = (replace(b, known=tuple(request.known), threshold=self.threshold) for b in plan.branches)
        return RequestPlan(None, tuple(branches))
