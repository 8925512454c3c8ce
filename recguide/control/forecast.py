"""What the controller expects of the requests at hand: survival of the drafts they hold, and how well they have done.

One batch of feature rows a step, only for places that hold a draft; histories are read once for each verification.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from recguide.control.controller import Controller
from recguide.control.features import GROUP, KINDS, block_features, draft_features, history
from recguide.control.monitor import Monitor
from recguide.engine.request import Request

MEMORY = "recguide"
CONTINUATION = KINDS.index("continuation")
NO_PAST = history(())
STALE = 10  # tokens after its last verification at which a request's past no longer keeps it from drafting


class Seen(NamedTuple):
    """What is expected of one request: P(accepted | reached) and survival of each draft it holds, P(second-best is
    right | rejected) there, and its history bucket. Drafts beyond the controller's places are not counted."""

    conditional: list[float]
    survival: list[float]
    second: list[float]
    bucket: int


class Forecaster:
    """Evaluates a controller's models for requests."""

    def __init__(self, controller: Controller, monitor: Monitor):
        self._controller, self._monitor = controller, monitor
        self._buckets: dict[tuple[float, ...], int] = {}

    def __call__(self, requests: Sequence[Request]) -> list[Seen]:
        places = self._controller.places
        pasts = [self._past(request) for request in requests]
        seen = [Seen([], [], [], bucket) for _, bucket in pasts]
        drafted = [i for i, request in enumerate(requests) if request.draft and request.draft.tokens]
        if drafted:
            some = [requests[i] for i in drafted]
            held = [min(len(r.draft.tokens), places) for r in some]
            kinds = np.array([KINDS.index(r.draft.kind) for r in some])
            conditional, second = self._drafts(some, kinds, np.array([pasts[i][0] for i in drafted]), held)
            for i, size, mine, theirs in zip(drafted, held, conditional.tolist(), second.tolist(), strict=True):
                mine = mine[:size]
                seen[i] = Seen(mine, list(itertools.accumulate(mine, operator.mul)), theirs[:size], pasts[i][1])
        return seen

    def _drafts(self, requests, kinds, histories, held: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Conditionals and second choices [drafts, longest] of requests that hold drafts."""
        size = max(held)
        top1, margin = np.full((len(held), size), np.nan), np.full((len(held), size), np.nan)
        for row, request in enumerate(requests):
            draft = request.draft
            signals = draft.top1[:size]  # none, when it was made under a policy that does not ask for them
            top1[row, : len(signals)], margin[row, : len(signals)] = signals, draft.margin[:size]
        there = np.arange(size) < np.array(held)[:, None]
        seen = there & np.isfinite(top1) & np.isfinite(margin)
        rows = draft_features(np.where(seen, top1, 0.5), np.where(seen, margin, 0.0), kinds, histories)[seen]
        conditional, second = self._usual(kinds, size) * there, np.zeros((len(held), size))
        if len(rows):
            conditional[seen] = self._controller.mismatch(rows)
            second[seen] = self._controller.second(rows)
        return self._recalibrated(conditional, kinds, there), second

    def _usual(self, kinds: np.ndarray, size: int) -> np.ndarray:
        return self._controller.usual[GROUP[kinds]][:, :size]

    def _recalibrated(self, conditional, kinds, there) -> np.ndarray:
        offset = self._monitor.offset(GROUP[kinds], conditional.shape[1])
        if not offset.any():
            return conditional
        return np.where(there, shifted(conditional, offset), 0.0)

    def _past(self, request: Request) -> tuple[tuple[float, ...], int]:
        """A request's history features and bucket, worked out anew after each verification.

        A past that says "do not draft" would never be followed by a verification that says otherwise, while the text
        goes on: when it is stale, the bucket is at least that of a request without a past.
        """
        rounds, place = len(request.accepted_history), len(request.tokens)
        kept = request.memory.get(MEMORY)
        if kept is None or kept[0] != rounds:
            features = history(request.accepted_history)
            kept = (rounds, features, self._bucket(features), place)
            request.memory[MEMORY] = kept
        _, features, bucket, verified_at = kept
        return features, bucket if place - verified_at < STALE else max(bucket, self._bucket(NO_PAST))

    def _bucket(self, features: tuple[float, ...]) -> int:
        rounded = tuple(round(value, 1) for value in features)
        if rounded not in self._buckets:
            kind = np.array([CONTINUATION])
            rows = block_features(self._controller.places, kind, np.array([rounded]))[0]
            expected = np.cumprod(self._controller.utility(rows)).sum()
            self._buckets[rounded] = int(np.digitize(expected, self._controller.edges))
        return self._buckets[rounded]


def shifted(probability: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Probabilities whose log-odds are moved by ``offset``."""
    factor = np.exp(offset)
    return factor * probability / (1 - probability + factor * probability)
