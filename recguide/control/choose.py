"""The best plan of one request at given prices: what ``planner.Options`` finds for many samples, in plain numbers.

A step plans a handful of requests, and for so few an array operation costs its call and not its arithmetic. The two
agree to rounding (tested).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recguide.control.planner import Prices, Shape


class Ready(NamedTuple):
    """A branch to keep ready for the outcome ``place`` (so many drafts accepted): ``known``: behind the second-best
    token, else open; ``drafts`` tokens long."""

    place: int
    known: bool
    drafts: int


class Choice(NamedTuple):
    """``value`` in tokens, rows not paid; ``net`` is that less their price; ``values``: net by drafts verified."""

    verify: int
    branches: list[Ready]
    value: float
    net: float
    draft_rows: int
    values: list[float]


@dataclass(frozen=True)
class Tariff:
    """Prices of one history bucket as plain lists: worth of a branch by its length and of a tail by what is left, and
    the cost of a branch in tokens. ``rate`` is in tokens per millisecond."""

    rate: float
    open: list[float]
    known: list[float]
    tail: list[float]
    open_chance: float
    cost: list[float]
    causal: float
    causal_alone: float
    draft: float
    extra: int
    trim: bool
    overlap: bool
    lengths: range

    @classmethod
    def of(cls, prices: Prices, shape: Shape, times: float = 1.0) -> Tariff:
        """``times`` multiplies what rows cost."""
        size, draft = len(prices.ready), times * prices.draft
        return cls(
            rate=times * prices.rate,
            open=prices.ready.tolist(),
            known=prices.ready_known.tolist(),
            tail=prices.ready_tail.tolist(),
            open_chance=shape.open_chance,
            cost=[draft * (m + shape.extra) for m in range(size)],
            causal=times * prices.causal,
            causal_alone=times * prices.causal_alone,
            draft=draft,
            extra=shape.extra,
            trim=shape.trim,
            overlap=shape.overlap,
            lengths=range(1, size) if shape.block is None else range(shape.block, shape.block + 1),
        )


def choose(
    survival: Sequence[float], second: Sequence[float], tariff: Tariff, *, drafting: bool, weight: float = 1.0
) -> Choice:
    """The plan of highest value less price for a request that holds ``len(survival)`` drafts.

    ``second`` is the chance of each place that the second-best token is right, given a rejection there. ``weight``
    multiplies what tokens are worth.
    """
    held = len(survival)
    branching = drafting and (tariff.overlap or not held)
    row = tariff.causal if drafting else tariff.causal_alone
    ready: list[Ready | None] = []
    values: list[float] = []
    ends: list[Ready | None] = []
    total, inner, reach = 0.0, 0.0, weight
    for v in range(held + 1):
        instead = tariff.tail[min(max(held - v - 1, 0), len(tariff.tail) - 1)]
        total += reach
        chance = reach * tariff.open_chance
        last, branch = _longest(chance, tariff.open, instead, tariff, v, False) if branching else (0.0, None)
        ends.append(branch)
        values.append(total + inner + last + reach * instead - row * (v + 1))
        if v == held:
            break
        rejected = reach - weight * survival[v]
        gain, kept = 0.0, None
        if branching:
            chance = rejected * tariff.open_chance
            gain, kept = _longest(chance, tariff.open, instead, tariff, v, False)
            known, correction = _longest(rejected * second[v], tariff.known, instead, tariff, v, True)
            if known > gain:
                gain, kept = known, correction
        ready.append(kept)
        inner += gain + rejected * instead
        reach = weight * survival[v]
    verify = max(range(len(values)), key=values.__getitem__) if tariff.trim else held
    branches = [branch for branch in (*ready[:verify], ends[verify]) if branch is not None]
    rows = sum(branch.drafts + tariff.extra for branch in branches)
    net = values[verify]
    value = net + row * (verify + 1) + (tariff.draft * rows if rows else 0.0)
    return Choice(verify, branches, value, net, rows, values)


def _longest(
    chance: float, worth: list[float], instead: float, tariff: Tariff, place: int, known: bool
) -> tuple[float, Ready | None]:
    """The gain of the best branch for an outcome of this chance over what is there ``instead``, and the branch; nothing
    where none pays."""
    best, length = 0.0, 0
    for m in tariff.lengths:
        gain = chance * (worth[m] - instead) - tariff.cost[m]
        if gain > best:
            best, length = gain, m
    return best, Ready(place, known, length) if length else None
