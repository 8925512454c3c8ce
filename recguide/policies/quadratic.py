"""Quadratic self-speculation (TiDAR): an open branch after every trunk row, so that every outcome has a draft ready.

As published, the branch of the outcome is used whatever its first mask guessed: the verifier's token takes that place.
"""

from __future__ import annotations

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import BLOCK, Policy, opened


class Quadratic(Policy):
    name = "quadratic"
    summary = "verify and draft in one forward, with an open branch after every trunk row"
    knobs = (BLOCK,)

    def plan_request(self, request: Request) -> RequestPlan:
        verify = len(request.draft.tokens) if request.draft else 0
        return RequestPlan(verify, tuple(opened(request, p, self.block - 1, loose=True) for p in range(1, verify + 2)))
