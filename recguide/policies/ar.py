"""Plain autoregressive decoding: one row, one token."""

from __future__ import annotations

from recguide.engine.plan import AR, RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import Policy


class Autoregressive(Policy):
    name = "ar"
    summary = "plain autoregressive decoding, one token a step"

    def plan_request(self, request: Request) -> RequestPlan:
        return AR
