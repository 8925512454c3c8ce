"""Predictive draft-verify overlap (the paper's low-load rule, PAPER section 'Low load').

Draft positions whose margin P1 - P2 is below ``delta`` are risky. The earliest two get a correction branch with the
second-best token; with at most two risky positions a continuation branch assumes full acceptance. All ride along with
the verification, so that a correct guess saves the next draft forward.
"""

from __future__ import annotations

from recguide.engine.plan import AR, RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, Knob, Policy, continuation, correction

DELTA = Knob(name="delta", default=0.5, low=0.0, high=1.0, unit="", help="a margin below this is risky")
MOST_RISKY = 2


class Overlap(Policy):
    name = "overlap"
    summary = "draft the likely corrections and the continuation while verifying"
    knobs = (BLOCK, DELTA)
    needs_signals = True

    def plan_request(self, request: Request) -> RequestPlan:
        draft = request.draft
        if self.block == 1:
            return AR
        if not draft:
            return RequestPlan(0, (continuation(request, 0, self.block - 1),))
        verify = len(draft.tokens)
        risky = [j for j, margin in enumerate(draft.margin, 1) if margin < self.delta]
        branches = [correction(request, draft, j, self.block - 1) for j in risky[:MOST_RISKY]]
        if len(risky) <= MOST_RISKY:
            branches.append(continuation(request, verify, self.block - 1))
        return RequestPlan(verify, tuple(branches))
