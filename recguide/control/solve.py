"""The fixed point that plans are priced at: the best stationary way to run on a device with a drafter.

What drafts are worth (W), the prices of rows and the rate (tokens per millisecond, Dinkelbach's multiplier) belong
together: an average-reward problem over drafts as they were seen (DESIGN section 7), solved by policy iteration. A
step's time is taken for a straight line in its rows, about the mean rows of the plans at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from recguide.control.planner import Options, Prices, Shape

StepTime = Callable[[float, float], float]
"""Milliseconds of a step, divided by its requests, from causal and draft rows per request."""


@dataclass(frozen=True)
class Drafts:
    """Drafts as they were seen: survivals [drafts, K] of those from open branches, of those from known tokens, and of
    tails (maybe none). ``second`` [K] is the chance that the second-best token is the verifier's, given a rejection at
    that place."""

    open: np.ndarray
    known: np.ndarray
    tail: np.ndarray
    second: np.ndarray


@dataclass(frozen=True)
class Samples(Drafts):
    """With the history bucket of their requests: ``open_bucket``, ``known_bucket``, ``tail_bucket`` [drafts], of
    ``buckets`` in all."""

    open_bucket: np.ndarray
    known_bucket: np.ndarray
    tail_bucket: np.ndarray
    buckets: int

    def only(self, bucket: int) -> Drafts:
        """Those of one bucket, or all where it has none."""
        kept = {}
        for name in ("open", "known", "tail"):
            survival, found = getattr(self, name), getattr(self, f"{name}_bucket") == bucket
            kept[name] = survival[found] if found.any() else survival
        return Drafts(**kept, second=self.second)


@dataclass(frozen=True)
class Operating:
    """The best stationary way to run: its prices, whether anyone drafts at all, and per step and request its tokens,
    rows and milliseconds. ``mean_rows``: causal and draft rows of its steps that draft, and causal rows of others."""

    prices: Prices
    drafts: bool
    tokens: float
    causal_rows: float
    draft_rows: float
    milliseconds: float
    mean_rows: tuple[float, float, float]


STARTS = ((1.0, 1.5, 1.0), (2.0, 4.0, 2.0), (3.5, 12.0, 3.5))  # mean rows, as in Operating
ROUNDS = 6
WORTH_ROUNDS = 5
SIZES, HOPELESS = (1, 2, 4, 8), 0.95  # where plans of one of these sizes earn less of plain AR, nothing is looked for
SETTLED = 1e-3  # a round that raises the rate by less, as a share, is the last


def solve(
    time: StepTime, drafts: Drafts, shape: Shape, *, margin: float = 0.0, near: Operating | None = None
) -> Operating:
    """The operating point of highest rate, from several starts: step times are not convex, and a start near an earlier
    point settled for less. Where one that drafts is ``near``, and is found to draft still, it is the only start.

    Drafting must beat plain AR by ``margin`` (a share), so that a caller can keep to what it did before. ``time`` is
    asked for rows per request.
    """
    time = cache(time)
    if not len(drafts.tail):
        shape = replace(shape, tail=0)
    best = plain = _plain(time, drafts, shape)
    if _simple_gain(time, drafts, shape) < HOPELESS:
        return plain
    stack = _Stack(drafts, shape)
    seen: set[float] = set()
    for start in (near, *(replace(plain, mean_rows=rows) for rows in STARTS)):
        if start is None or (start is near and not near.drafts):
            continue
        best = max(best, _settle(time, stack, shape, start, seen), key=lambda point: point.prices.rate)
        if start is near and best.drafts:
            break
    return best if best.drafts and best.prices.rate >= plain.prices.rate * (1 + margin) else plain


def _plain(time: StepTime, drafts: Drafts, shape: Shape) -> Operating:
    """AR: a token for a row."""
    spent = time(1, 0)
    nothing = np.zeros(drafts.open.shape[1] + 1)
    rate = 1 / spent
    alone = rate * (time(2, 0) - spent)
    prices = Prices(rate, alone, np.inf, alone, nothing, nothing, np.zeros(shape.tail + 1))
    return Operating(prices, False, 1.0, 1.0, 0.0, spent, (1.0, 1.0, 1.0))


def _simple_gain(time: StepTime, drafts: Drafts, shape: Shape) -> float:
    """What plans of one size earn at best of what plain decoding does: drafting and verifying in turn, or in one step
    whose draft always comes true."""
    gains = []
    for size in SIZES:
        accepted, rows = shape.open_chance * float(drafts.open[:, :size].sum(1).mean()), size + shape.extra
        gains.append((2 + accepted) / (time(1, rows) + time(1 + size, 0)))
        gains.append((1 + accepted) / time(1 + size, rows))
    return max(gains) * time(1, 0)


def _settle(time: StepTime, stack: _Stack, shape: Shape, start: Operating, seen: set[float]) -> Operating:
    """Policy iteration from ``start``: the best point on the way. It ends where another start's way, of rates ``seen``,
    is met."""
    best = point = start
    for number in range(ROUNDS):
        costs = _Costs.at(time, point.prices.rate, *point.mean_rows)
        prices = replace(point.prices, causal=costs.causal, draft=costs.draft, causal_alone=costs.causal_alone)
        for _ in range(WORTH_ROUNDS):
            before, prices = prices, _worth(stack, prices, shape, costs)
            if np.abs(prices.ready - before.ready).max() < SETTLED:
                break
        point = _stationary(time, stack, shape, prices, costs)
        met = point.prices.rate in seen
        seen.add(point.prices.rate)
        last = met or point.draft_rows == 0 or (number and point.prices.rate < best.prices.rate * (1 + SETTLED))
        if number == 0 or point.prices.rate > best.prices.rate:
            best = point
        if last:
            break
    return best


@dataclass(frozen=True)
class _Costs:
    """A step's cost in tokens per request, as two straight lines: steps that draft, and steps that do not."""

    fixed: float
    causal: float
    draft: float
    fixed_alone: float
    causal_alone: float

    @classmethod
    def at(cls, time: StepTime, rate: float, causal: float, draft: float, alone: float) -> _Costs:
        per_causal = _slope(lambda rows: time(rows, draft), max(causal - 1, 1.0), causal + 2)
        per_draft = _slope(lambda rows: time(causal, rows), max(draft - 1.5, 0.5), draft + 3)
        per_alone = _slope(lambda rows: time(rows, 0), max(alone - 1, 1.0), alone + 2)
        return cls(
            fixed=rate * (time(causal, draft) - per_causal * causal - per_draft * draft),
            causal=rate * per_causal,
            draft=rate * per_draft,
            fixed_alone=rate * (time(alone, 0) - per_alone * alone),
            causal_alone=rate * per_alone,
        )


def _slope(time: Callable[[float], float], low: float, high: float) -> float:
    """Milliseconds a row, over a stretch so long that the noise of a measured table does not matter."""
    return max((time(high) - time(low)) / (high - low), 0.0)


class _Stack:
    """All drafts of a problem, one behind the other: open ones first, then known, tails; what no price changes."""

    def __init__(self, drafts: Drafts, shape: Shape):
        places = drafts.open.shape[1]
        tails = np.zeros((len(drafts.tail) if shape.tail else 0, places))
        tails[:, : shape.tail] = drafts.tail[: len(tails), : shape.tail]
        parts = {"ready": drafts.open, "ready_known": drafts.known, "ready_tail": tails}
        ends = np.cumsum([len(part) for part in parts.values()])
        self.parts = {name: slice(end - len(parts[name]), end) for name, end in zip(parts, ends, strict=True)}
        self.survival = np.concatenate(list(parts.values()))
        self.held = np.arange(places + 1)[:, None]
        self.second = np.broadcast_to(drafts.second, self.survival.shape)


class _Both:
    """The options of a stack of drafts, in steps that draft and in steps that do not."""

    def __init__(self, stack: _Stack, prices: Prices, shape: Shape):
        self.parts, self.held, self.second = stack.parts, stack.held, stack.second
        args = (stack.survival, stack.second, prices, shape)
        self.with_, self.alone = Options(*args), Options(*args, drafting=False)

    def net(self, shape: Shape, costs: _Costs) -> np.ndarray:
        """Value less cost [K + 1, drafts] of the best plans, by drafts held."""
        with_ = self.with_.values(self.held).max(-1) - costs.fixed
        if not shape.overlap:
            with_[1:] = -np.inf
        return np.maximum(with_, self.alone.values(self.held).max(-1) - costs.fixed_alone)


def _worth(stack: _Stack, prices: Prices, shape: Shape, costs: _Costs) -> Prices:
    """``prices`` with W worked out anew from what it was."""
    both, made = _Both(stack, prices, shape), {}
    each = both.net(shape, costs)
    for name, part in both.parts.items():
        before = getattr(prices, name)
        if len(before) > 1:
            net = each[: len(before), part].mean(1)
            # what a draft is worth stands against drafting now: undamped, each round would answer the last one's excess
            made[name] = (before + np.maximum(net - net[0], 0.0)) / 2
    return replace(prices, **made)


@dataclass(frozen=True)
class _Played:
    """A step of requests that hold drafts of one length: means of tokens, rows, and time, and where it leads."""

    tokens: float
    causal: float
    draft: float
    drafting: float
    milliseconds: float
    moves: np.ndarray


def _stationary(time: StepTime, stack: _Stack, shape: Shape, prices: Prices, costs: _Costs) -> Operating:
    """Play the plans: how often each draft is at hand, and the tokens, rows and time that follow.

    States are drafts of 0 to K tokens, then tails of 1 and more.
    """
    played = _play(time, _Both(stack, prices, shape), shape, costs)
    share = _shares(np.array([p.moves for p in played]))
    tokens, causal, draft, drafting, spent = (
        np.array([getattr(p, name) for p in played])
        for name in ("tokens", "causal", "draft", "drafting", "milliseconds")
    )
    rate = float(share @ tokens / (share @ spent))
    rows = float(share @ causal), float(share @ draft)
    busy, idle = share * drafting, share * (1 - drafting)
    mean_rows = 1.0, 1.0, rows[0]
    if busy.sum() > 0:
        mean_causal = float(busy @ causal / busy.sum())
        mean_alone = float(idle @ causal / idle.sum()) if idle.sum() > 0 else mean_causal
        mean_rows = mean_causal, rows[1] / float(busy.sum()), mean_alone
    tokens, spent = float(share @ tokens), float(share @ spent)
    return Operating(replace(prices, rate=rate), rows[1] > 0, tokens, *rows, spent, mean_rows)


def _play(time: StepTime, both: _Both, shape: Shape, costs: _Costs) -> list[_Played]:
    """A step of requests in each state."""
    reach = both.with_.reach
    held = np.broadcast_to(both.held, (len(both.held), len(reach)))
    plans, plain = both.with_.best(held), both.alone.best(held)
    drafts = (plans.net - costs.fixed > plain.net - costs.fixed_alone) & (plans.draft_rows > 0)
    drafts &= shape.overlap | (held == 0)
    verify = np.where(drafts, plans.verify, plain.verify)
    rows = np.where(drafts, plans.draft_rows, 0)
    tokens = np.take_along_axis(np.cumsum(reach, 1)[None], verify[..., None], -1)[..., 0]
    opened, known = plans.open * drafts[..., None], plans.known * drafts[..., None]
    states = [(m, both.parts["ready"]) for m in range(len(both.held))]
    states += [(m, both.parts["ready_tail"]) for m in range(1, shape.tail + 1)]
    played = []
    for m, part in states:
        at = m, part
        busy, causal = drafts[at], verify[at] + 1
        share = float(busy.mean())
        spent = share and share * time(float(causal[busy].mean()), float(rows[at][busy].mean()))
        spent += (1 - share) and (1 - share) * time(float(causal[~busy].mean()), 0)
        moves = _moves(both, m, part, verify[at], opened[at], known[at], shape)
        played.append(
            _Played(float(tokens[at].mean()), float(causal.mean()), float(rows[at].mean()), share, spent, moves)
        )
    return played


def _moves(
    both: _Both, m: int, part: slice, verify: np.ndarray, opened: np.ndarray, known: np.ndarray, shape: Shape
) -> np.ndarray:
    """Chances [states] of what is held next: nothing, a draft of 1 to K tokens, a tail of 1 and more."""
    reach, outcomes, places = both.with_.reach[part], np.arange(opened.shape[1]), opened.shape[1] - 1
    ends, by_known = np.zeros(opened.shape), np.zeros(opened.shape)
    ends[:, :-1] = both.with_.ends[part] * (outcomes[:-1] < verify[:, None])
    rows = np.arange(len(reach))
    ends[rows, verify] = reach[rows, verify]
    by_open = ends * shape.open_chance * (opened > 0)
    by_known[:, :-1] = ends[:, :-1] * both.second[part] * (known > 0)
    states = 1 + places + shape.tail
    moves = np.bincount(opened.ravel(), by_open.ravel(), states)
    moves += np.bincount(known.ravel(), by_known[:, :-1].ravel(), states)
    left = (m - 1 - outcomes).clip(0, shape.tail)
    moves += np.bincount(np.where(left > 0, places + left, 0), (ends - by_open - by_known).sum(0), states)
    moves /= len(reach)
    moves[0] = 1 - moves[1:].sum()
    return moves


def _shares(move: np.ndarray) -> np.ndarray:
    """The stationary distribution of a chain [states, states]."""
    size = len(move)
    system = np.vstack((move.T - np.eye(size), np.ones(size)))
    share = np.maximum(np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0], 0)
    return share / share.sum()
