"""The fixed point that plans are priced at: the best stationary way to run on a device with a drafter.

What drafts are worth (W), the prices of rows and the rate (tokens per millisecond, Dinkelbach's multiplier) belong
together: an average-reward problem over drafts as they were seen (DESIGN section 7), solved by policy iteration. A
step's time is taken for a straight line in its rows, about the mean rows of the plans at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
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


RICH = (2.0, 4.0, 2.0)  # mean rows, as in Operating
ROUNDS = 6
WORTH_ROUNDS = 5
SIZES, HOPELESS = (1, 2, 4, 8), 0.95  # where plans of one of these sizes earn less of plain AR, nothing is looked for
SETTLED = 1e-3  # a round that raises the rate by less, as a share, is the last


def solve(
    time: StepTime, drafts: Drafts, shape: Shape, *, margin: float = 0.0, near: Operating | None = None
) -> Operating:
    """The operating point of highest rate. Step times are not convex, so there are two starts: the best plans of one
    size, and rich ones. Where a point that drafts is ``near``, and is found to draft still, it is the only start.

    Drafting must beat plain AR by ``margin`` (a share), so that a caller can keep to what it did before. ``time`` is
    asked for rows per request.
    """
    time = cache(time)
    if not len(drafts.tail):
        shape = replace(shape, tail=0)
    best = plain = _plain(time, drafts, shape)
    in_turn, hope = _best_size(time, drafts, shape, plain)
    if hope < HOPELESS:
        return plain
    stack, seen = _Stack(drafts, shape), set()
    starts = [in_turn, replace(plain, mean_rows=RICH)]
    if near is not None and near.drafts:
        starts.insert(0, near)
    for start in starts:
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


def _best_size(time: StepTime, drafts: Drafts, shape: Shape, plain: Operating) -> tuple[Operating, float]:
    """Plans of one size, the best, that draft and verify in turn; and the most that a size would earn of what plain
    decoding does, if that were one step and its drafts always came true."""
    in_turn, together = {}, []
    for size in SIZES:
        accepted, rows = shape.open_chance * float(drafts.open[:, :size].sum(1).mean()), size + shape.extra
        in_turn[size] = (2 + accepted) / (time(1, rows) + time(1 + size, 0))
        together.append((1 + accepted) / time(1 + size, rows))
    size, rate = max(in_turn.items(), key=lambda item: item[1])
    rows = 1.0, size + shape.extra, 1.0 + size
    start = replace(plain, prices=replace(plain.prices, rate=rate), mean_rows=rows)
    return start, max(rate, *together) * time(1, 0)


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
    """A step's cost in tokens per request, as two straight lines: steps that draft, and steps that do not. Plain steps
    are common and lie beside the second line where rows come in tiles: they cost ``plain`` more than it says."""

    fixed: float
    causal: float
    draft: float
    fixed_alone: float
    causal_alone: float
    plain: float

    @classmethod
    def at(cls, time: StepTime, rate: float, causal: float, draft: float, alone: float) -> _Costs:
        per_causal = _slope(lambda rows: time(rows, draft), causal, 1.0)
        per_draft = _slope(lambda rows: time(causal, rows), draft, 0.5)
        per_alone = _slope(lambda rows: time(rows, 0), alone, 1.0)
        return cls(
            fixed=rate * (time(causal, draft) - per_causal * causal - per_draft * draft),
            causal=rate * per_causal,
            draft=rate * per_draft,
            fixed_alone=rate * (time(alone, 0) - per_alone * alone),
            causal_alone=rate * per_alone,
            plain=rate * (time(1, 0) - time(alone, 0) + per_alone * (alone - 1)),
        )


def _slope(time: Callable[[float], float], rows: float, least: float) -> float:
    """Milliseconds a row, from one row less (``least`` rows are there) to one more."""
    low, high = max(rows - 1, least), rows + 1
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

    def __init__(self, stack: _Stack, prices: Prices, shape: Shape, costs: _Costs):
        self.parts, self.held, self.second = stack.parts, stack.held, stack.second
        args = (stack.survival, stack.second, prices, shape)
        self.with_, self.alone = Options(*args), Options(*args, drafting=False, plain=costs.plain)

    def net(self, shape: Shape, costs: _Costs) -> np.ndarray:
        """Value less cost [K + 1, drafts] of the best plans, by drafts held."""
        with_ = self.with_.values(self.held).max(-1) - costs.fixed
        if not shape.overlap:
            with_[1:] = -np.inf
        return np.maximum(with_, self.alone.values(self.held).max(-1) - costs.fixed_alone)


def _worth(stack: _Stack, prices: Prices, shape: Shape, costs: _Costs) -> Prices:
    """``prices`` with W worked out anew from what it was."""
    both, made = _Both(stack, prices, shape, costs), {}
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
    """Steps of requests that hold drafts of one length, for several lengths: means [states] of tokens, rows, the share
    that drafts, and time; and where they lead [states, all states]."""

    tokens: np.ndarray
    causal: np.ndarray
    draft: np.ndarray
    drafting: np.ndarray
    milliseconds: np.ndarray
    moves: np.ndarray


def _stationary(time: StepTime, stack: _Stack, shape: Shape, prices: Prices, costs: _Costs) -> Operating:
    """Play the plans: how often each draft is at hand, and the tokens, rows and time that follow.

    States are drafts of 0 to K tokens, then tails of 1 and more.
    """
    played = _play(time, _Both(stack, prices, shape, costs), shape, costs)
    share = _shares(played.moves)
    causal, draft, drafting = played.causal, played.draft, played.drafting
    tokens, spent = float(share @ played.tokens), float(share @ played.milliseconds)
    rows = float(share @ causal), float(share @ draft)
    busy, idle = share * drafting, share * (1 - drafting)
    mean_rows = 1.0, 1.0, rows[0]
    if busy.sum() > 0:
        mean_causal = float(busy @ causal / busy.sum())
        mean_alone = float(idle @ causal / idle.sum()) if idle.sum() > 0 else mean_causal
        mean_rows = mean_causal, rows[1] / float(busy.sum()), mean_alone
    return Operating(replace(prices, rate=tokens / spent), rows[1] > 0, tokens, *rows, spent, mean_rows)


def _play(time: StepTime, both: _Both, shape: Shape, costs: _Costs) -> _Played:
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

    def together(holding: slice, part: slice) -> _Played:
        at = holding, part
        spent = _milliseconds(time, drafts[at], verify[at] + 1, rows[at])
        moves = _moves(both, both.held[holding], part, verify[at], opened[at], known[at], shape)
        means = (x[at].mean(1) for x in (tokens, verify + 1, rows, drafts))
        return _Played(*means, spent, moves)

    groups = [together(slice(None), both.parts["ready"])]
    if shape.tail:
        groups.append(together(slice(1, 1 + shape.tail), both.parts["ready_tail"]))
    return _Played(*(np.concatenate([getattr(group, f.name) for group in groups]) for f in fields(_Played)))


def _milliseconds(time: StepTime, drafting: np.ndarray, causal: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Mean time of steps [states, drafts]: those that draft together, and those that do not."""
    spent = np.zeros(len(drafting))
    for these in (drafting, ~drafting):
        count = these.sum(1)
        means = ((x * these).sum(1) / np.maximum(count, 1) for x in (causal, rows))
        for state, (share, *mean) in enumerate(zip(count / these.shape[1], *means, strict=True)):
            if share:
                spent[state] += share * time(*map(float, mean))
    return spent


def _moves(
    both: _Both, held: np.ndarray, part: slice, verify: np.ndarray, opened: np.ndarray, known: np.ndarray, shape: Shape
) -> np.ndarray:
    """Chances [states, all states] of what is held next: nothing, a draft of 1 to K tokens, a tail of 1 and more.

    ``held`` [states, 1], ``verify`` [states, drafts], ``opened`` and ``known`` [states, drafts, outcomes].
    """
    reach, outcomes, places = both.with_.reach[part], np.arange(opened.shape[-1]), opened.shape[-1] - 1
    ends, by_known = np.zeros(opened.shape), np.zeros(opened.shape)
    ends[..., :-1] = both.with_.ends[part] * (outcomes[:-1] < verify[..., None])
    np.put_along_axis(ends, verify[..., None], np.take_along_axis(reach[None], verify[..., None], -1), -1)
    by_open = ends * shape.open_chance * (opened > 0)
    by_known[..., :-1] = ends[..., :-1] * both.second[part] * (known > 0)
    left = (held - 1 - outcomes).clip(0, shape.tail)
    tails = np.broadcast_to(np.where(left > 0, places + left, 0)[:, None], ends.shape)
    count, states = len(opened), 1 + places + shape.tail
    first = states * np.arange(count)[:, None, None]

    def summed(state: np.ndarray, chances: np.ndarray) -> np.ndarray:
        return np.bincount((first + state).ravel(), chances.ravel(), count * states).reshape(count, states)

    moves = summed(opened, by_open) + summed(known, by_known[..., :-1]) + summed(tails, ends - by_open - by_known)
    moves /= len(reach)
    moves[:, 0] = 1 - moves[:, 1:].sum(1)
    return moves


def _shares(move: np.ndarray) -> np.ndarray:
    """The stationary distribution of a chain [states, states]."""
    size = len(move)
    system = np.vstack((move.T - np.eye(size), np.ones(size)))
    share = np.maximum(np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0], 0)
    return share / share.sum()
