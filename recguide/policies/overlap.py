"""Predictive draft-verify overlap (the paper's low-load rule, PAPER section 'Low load').

Draft positions whose margin P1 - P2 is below ``delta`` are risky. The earliest two get a correction branch with the
second-best token; with at most two risky positions a continuation branch assumes full acceptance. All ride along with
the verification, so that a correct guess saves the next draft forward. Under the shifted convention an open branch
needs no guess (the verifier's row beside it decides the token), so that it takes the place of the correction branch.
"""

from __future__ import annotations

from recguide.engine.plan import AR, Branch, RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, Knob, Policy, continuation, correction, opened

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
        branches = [self._corrected(request, j) for j in risky[:MOST_RISKY]]
        if len(risky) <= MOST_RISKY:
            branches.append(continuation(request, verify, self.block - 1))
        return RequestPlan(verify, tuple(branches))

    def _corrected(self, request: Request, position: int) -> Branch:
        if request.draft_shift:
            return opened(request, position, self.block - 1)
        return correction(request, request.draft, position, self.block - 1)
