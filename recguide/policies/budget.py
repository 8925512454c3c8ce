"""A fixed number of verify rows a step, spread over requests by expected acceptance (vLLM's adaptive verification,
TETRIS).

The chance that a draft token is accepted with all before it is taken as the product of the draft's own top-1
probabilities; the likeliest tokens of all requests are verified. That product never rises along a draft, so that each
request verifies a prefix, and a larger budget only lengthens the prefixes. Every request keeps its one causal row
beside the budget. Drafts are always whole blocks, and ride behind an autoregressive row, as in ``ar-row``: there is
nothing to save on a draft before its probabilities are known.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from recguide.engine.plan import RequestPlan
from recguide.engine.request import Draft, Request
from recguide.policies.base import BLOCK, Knob, Policy, draft_or_verify

ROWS = Knob(
    name="rows",
    default=16,
    low=0,
    high=4096,
    unit="rows",
    help="draft tokens verified in a step, over all requests (each request's one causal row is not counted)",
)
UNKNOWN = 0.7  # of a draft made without signals, under another policy


class Budget(Policy):
    name = "budget"
    summary = "a fixed number of verify rows a step, for the draft tokens most likely to be accepted"
    knobs = (BLOCK, ROWS)
    needs_signals = True

    def plan(self, requests: Sequence[Request]) -> list[RequestPlan]:
        sizes = allocate([survival(r.draft) if r.draft else [] for r in requests], self.rows)
        return [
            RequestPlan(size) if request.draft else draft_or_verify(request, self.block)
            for request, size in zip(requests, sizes, strict=True)
        ]


def survival(draft: Draft) -> list[float]:
    """Per draft position the expected chance that it is accepted together with all before it."""
    return list(itertools.accumulate(draft.top1 or [UNKNOWN] * len(draft.tokens), operator.mul))


def allocate(survivals: Sequence[Sequence[float]], rows: int) -> list[int]:
    """How many draft tokens each request verifies, ``rows`` in all at most. ``survivals`` never rise along a request.

    Among equals the earlier position, then the earlier request comes first.
    """
    slots = [(-s, j, i) for i, curve in enumerate(survivals) for j, s in enumerate(curve)]
    sizes = [0] * len(survivals)
    for _, _, i in sorted(slots)[:rows]:
        sizes[i] += 1
    return sizes
