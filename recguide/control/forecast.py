"""What the controller expects of the requests at hand: survival of the drafts they hold, and how well they have done.

One batch of feature rows a step, only for places that hold a draft; histories are read once for each verification.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from recguide.control.controller import Controller
from recguide.control.features import GROUP, KINDS, MOST, block_features, draft_features, history
from recguide.control.monitor import OFFSET_PLACES, Monitor
from recguide.engine.request import Draft, Request

MEMORY = "recguide"
CONTINUATION = KINDS.index("continuation")
NO_PAST = history(())
STALE = 10  # tokens after its last verification at which a request's past no longer keeps it from drafting
Number = TypeVar("Number", float, np.ndarray)


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
        self._usual = controller.usual.tolist()
        self._buckets = _buckets(controller)

    def __call__(self, requests: Sequence[Request]) -> list[Seen]:
        pasts = [self._past(request) for request in requests]
        rows = [self._rows(request.draft, past) for request, (past, _) in zip(requests, pasts, strict=True)]
        scored = self._scored([row for each in rows for row in each])
        return [
            self._seen(request.draft, islice(scored, len(each)), bucket)
            for request, each, (_, bucket) in zip(requests, rows, pasts, strict=True)
        ]

    def _rows(self, draft: Draft | None, past: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Features of the places that have signals: none, where the policy that drafted did not ask for them."""
        if draft is None or not draft.top1:
            return []
        size = min(len(draft.tokens), self._controller.places)
        top1, margin = draft.top1[:size], draft.margin[:size]
        if not math.isfinite(sum(top1) + sum(margin)):
            size = [math.isfinite(a + b) for a, b in zip(top1, margin, strict=True)].index(False)
        return draft_features(top1[:size], margin[:size], KINDS.index(draft.kind), past)

    def _scored(self, rows: list[tuple[float, ...]]) -> Iterator[tuple[float, float]]:
        """P(accepted | reached) and P(second-best is right | rejected) of each row."""
        if not rows:
            return iter(())
        return zip(self._controller.mismatch.few(rows), self._controller.second.few(rows), strict=True)

    def _seen(self, draft: Draft | None, scored: Iterable[tuple[float, float]], bucket: int) -> Seen:
        """Of places without signals what is usual is expected."""
        if draft is None or not draft.tokens:
            return Seen([], [], [], bucket)
        group = GROUP[KINDS.index(draft.kind)]
        expected = list(scored)
        expected += [(usual, 0.0) for usual in self._usual[group][len(expected) : len(draft.tokens)]]
        factors = self._monitor.factors(group)
        conditional = [
            shifted(chance, factors[min(place, OFFSET_PLACES - 1)]) for place, (chance, _) in enumerate(expected)
        ]
        survival = list(itertools.accumulate(conditional, operator.mul))
        return Seen(conditional, survival, [second for _, second in expected], bucket)

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
        rate, last, full, verifications = features
        last = min(last, self._controller.places)
        return self._buckets[round(rate, 1), last, full, round(verifications, 1)]


def _buckets(controller: Controller) -> dict[tuple[float, ...], int]:
    """The history bucket of every history, rates and logarithms rounded to a tenth: worked out beforehand, since a step
    in which an array function runs for the first time after a forward takes several times as long for it."""
    rates = [tenth / 10 for tenth in range(11)]
    verifications = sorted({round(math.log1p(count), 1) for count in range(MOST + 1)})
    histories = list(itertools.product(rates, range(controller.places + 1), (0.0, 1.0), verifications))
    kinds = np.full(len(histories), CONTINUATION)
    rows = block_features(controller.places, kinds, np.array(histories))
    chances = controller.utility(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:2])
    expected = np.cumprod(chances, 1).sum(1)
    return dict(zip(histories, np.digitize(expected, controller.edges).tolist(), strict=True))


def shifted(probability: Number, factor: Number) -> Number:
    """Probabilities whose odds are multiplied by ``factor``: numbers, or arrays of one shape."""
    return factor * probability / (1 - probability + factor * probability)
