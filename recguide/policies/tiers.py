"""Block by load, as serving engines read it from a table (TensorRT-LLM's ``draft_len_schedule``, vLLM's
``num_speculative_tokens_per_batch_size``, the ``block_size_tiers`` of LinearSpec).

Drafts ride behind an autoregressive row (as in ``ar-row``), so that the policy differs from the static ones in its
choice of block alone, and a draft forward commits a token too. The load is the number of requests planned together; a
draft that is at hand is verified whole, whatever the load has become. As in those engines there is no hysteresis: the
block follows the load, which does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Request
from recguide.policies.base import Policy, draft_or_verify
from recguide.policies.knobs import ScheduleKnob

SCHEDULE = ScheduleKnob(
    name="schedule",
    default=((2, 8), (4, 5), (8, 3), (None, 1)),
    low=1,
    high=64,
    unit="tokens",
    help="block@requests: up to so many requests, this block, seed included (1: plain AR); the last has no limit",
)


class Tiers(Policy):
    name = "tiers"
    summary = "a block for each load: smaller ones the more requests run"
    knobs = (SCHEDULE,)

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        block = self.block_at(len(requests))
        return [draft_or_verify(request, block) for request in requests]

    def block_at(self, load: int) -> int:
        """The block for so many requests."""
        return next(block for limit, block in self.schedule if limit is None or load <= limit)
