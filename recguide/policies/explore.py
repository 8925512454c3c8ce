"""Exploration for decision logs: plans drawn at random, each with the probability it was drawn with.

The draw is a fixed function of the request's seed and the length of its text, so that a run can be repeated.
"""

from __future__ import annotations

import random

from recguide.engine.plan import Branch, RequestPlan
from recguide.engine.request import Draft, Request
from recguide.policies.base import Knob, Policy, continuation, correction, draft_only, opened

BLOCKS = (2, 4, 8, 16)
LARGEST = Knob(name="largest", default=16, low=2, high=16, unit="tokens", help="largest block to try")


class Explore(Policy):
    name = "explore"
    summary = "random blocks, trims and branches with logged probabilities, to learn from"
    knobs = (LARGEST,)
    needs_signals = True
    tail = 3

    def plan_request(self, request: Request) -> RequestPlan:
        draw = random.Random(f"{request.params.seed}/{len(request.tokens)}")
        if request.draft:
            return self._verify(request, request.draft, draw)
        return self._draft(request, draw)

    def _draft(self, request: Request, draw: random.Random) -> RequestPlan:
        """Plain AR, a draft alone, or a draft behind an AR row, with any block: all alike."""
        blocks = [block for block in BLOCKS if block <= self.largest]
        plans = [RequestPlan(0)]
        plans += [draft_only(request, block - 1) for block in blocks]
        plans += [RequestPlan(0, (continuation(request, 0, block - 1),)) for block in blocks]
        chosen = draw.choice(plans)
        return RequestPlan(chosen.verify, chosen.branches, plans.count(chosen) / len(plans))

    def _verify(self, request: Request, draft: Draft, draw: random.Random) -> RequestPlan:
        """Half of the time the whole draft, else a random part; with it nothing, or one of the kinds of branches."""
        size = len(draft.tokens)
        whole = draw.random() < 0.5
        verify = size if whole else draw.randint(1, size)
        chance = 0.5 / size + (0.5 if verify == size else 0.0)
        blocks = [block for block in BLOCKS if block <= self.largest]
        options = self._branches(request, draft, verify, draw.choice(blocks) - 1)
        chosen = draw.choice(options)
        return RequestPlan(verify, chosen, chance / len(options) / (len(blocks) if chosen else 1))

    @staticmethod
    def _branches(request: Request, draft: Draft, verify: int, drafts: int) -> list[tuple[Branch, ...]]:
        options: list[tuple[Branch, ...]] = [(), (continuation(request, verify, drafts),)]
        weakest = min(range(verify), key=lambda j: draft.margin[j]) + 1 if len(draft.margin) >= verify else 1
        options.append((opened(request, weakest, drafts),))
        if len(draft.second) >= weakest:
            options.append((correction(request, draft, weakest, drafts),))
        return options
