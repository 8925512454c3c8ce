"""One price for every row: which plan is worth most, for each request, and the price at which that holds.

A request that verifies v of its drafts and keeps a draft of m_p tokens ready for each outcome p is worth

    1 + S_1 + ... + S_v + sum over outcomes p of P_p W(m_p)  -  causal price * (1 + v)  -  draft price * rows

where S_j is the survival of draft j, P_p = S_{p-1} - S_p (the last outcome: S_v), and W(m) is what it is worth to
hold a draft of m tokens rather than none. An outcome that nothing was kept ready for leaves a tail, where the policy
keeps tails: the rest of the draft, chosen again, which costs no row; a branch is worth what it is better than that.
At given prices the branches of different outcomes do not compete, so the best plan is found by looking at every v
once. AR, AR-row drafting, overlap, quadratic drafting and verification alone are all plans of this form. W, the prices
and the rate (tokens per millisecond, Dinkelbach's multiplier) belong together: they are the fixed point of an
average-reward problem over drafts as they were seen (DESIGN section 7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

StepTime = Callable[[float, float], float]
"""Milliseconds of a step, divided by its requests, from causal and draft rows per request."""


@dataclass(frozen=True)
class Prices:
    """What rows cost and drafts are worth, in tokens. ``rate`` is tokens per millisecond and request.

    ``ready`` [m + 1] is W of an open draft of m tokens, ``ready_known`` [m + 1] that of one behind a known token (a
    correction), ``ready_tail`` [tail + 1] that of a tail. ``causal_alone`` is the price of a causal row in steps that
    draft nothing.
    """

    rate: float
    causal: float
    draft: float
    causal_alone: float
    ready: np.ndarray
    ready_known: np.ndarray
    ready_tail: np.ndarray


@dataclass(frozen=True)
class Shape:
    """How a model's branches turn drafts into rows: each needs ``extra`` rows more than drafts (1 with ``draft_shift``
    0), and an open one comes true with probability ``open_chance`` given its outcome. ``tail``: drafts that are kept of
    what a rejection leaves.

    For ablations a part of the freedom can be taken away: without ``trim`` drafts are verified whole, without
    ``overlap`` nothing is drafted beside a verification, and with ``block`` every branch drafts so many tokens.
    """

    extra: int = 0
    open_chance: float = 1.0
    tail: int = 0
    trim: bool = True
    overlap: bool = True
    block: int | None = None


@dataclass(frozen=True)
class Plans:
    """For each request: drafts to verify, and per outcome 1..K+1 the draft tokens to keep ready (0: no branch), in an
    open branch or behind a known token. ``value`` is in tokens, rows not paid; ``net`` is that less their price."""

    verify: np.ndarray
    open: np.ndarray
    known: np.ndarray
    value: np.ndarray
    causal_rows: np.ndarray
    draft_rows: np.ndarray
    net: np.ndarray


class Options:
    """Everything that does not depend on how many drafts are held: what outcomes are worth, and the branches for them.

    ``survival`` [requests, K] of drafts. ``second`` [requests, K] is the chance that the second-best token is the
    verifier's, given a rejection there. ``weight`` [requests] multiplies what a request's tokens are worth. Without
    ``drafting`` there are no branches, and rows cost ``causal_alone``.
    """

    def __init__(
        self,
        survival: np.ndarray,
        second: np.ndarray,
        prices: Prices,
        shape: Shape,
        *,
        drafting: bool = True,
        weight: np.ndarray | None = None,
    ):
        count, places = survival.shape
        self._rows, self._places = np.arange(count)[:, None], np.arange(places + 1)
        self.price = prices.causal if drafting else prices.causal_alone
        self.draft_price = prices.draft
        self.drafting, self._shape = drafting, shape
        self._branch_rows = np.arange(len(prices.ready)) + shape.extra * (np.arange(len(prices.ready)) > 0)
        self.reach = np.concatenate((np.ones((count, 1)), survival), 1)
        self.ends = self.reach[:, :-1] - survival  # chance that the text ends at each draft
        self._scale = np.ones((count, 1)) if weight is None else weight[:, None]
        self._verified = self._scale * np.cumsum(self.reach, 1) - self.price * (self._places + 1)
        # by what is left of the draft: 0, 1, ... tokens
        instead = prices.ready_tail[:, None, None] * self._scale
        self._inside, self._last = instead * self.ends, instead * self.reach  # [left, requests, places]
        self._bare = self._inside, self._last
        if drafting:
            self._add_branches(second, prices, shape, instead)

    def _add_branches(self, second: np.ndarray, prices: Prices, shape: Shape, instead: np.ndarray) -> None:
        drafts = np.arange(len(prices.ready))
        barred = 0.0 if shape.block is None else np.where((drafts == 0) | (drafts == shape.block), 0.0, np.inf)
        cost = prices.draft * self._branch_rows + barred

        def gains(chance: np.ndarray, worth: np.ndarray) -> np.ndarray:
            """Of branches of each length for outcomes of this chance [m, left, requests, places]; 0 without one."""
            better = self._scale * worth[:, None, None, None] - instead  # [m, left, requests, 1]
            gain = chance * better - cost[:, None, None, None]
            gain[0] = 0.0
            return gain

        self._open = gains(shape.open_chance * self.ends, prices.ready)
        self._known = gains(self.ends * second, prices.ready_known)
        self._open_last = gains(shape.open_chance * self.reach, prices.ready)
        gain, gain_known = self._open.max(0), self._known.max(0)
        self._use_known = gain_known > gain
        self._inside = self._inside + np.maximum(gain, gain_known)
        self._last = self._last + self._open_last.max(0)

    def _left(self, held: np.ndarray) -> np.ndarray:
        """What is left of drafts of these lengths at each outcome."""
        return (held[..., None] - 1 - self._places).clip(0, len(self._last) - 1)

    def values(self, held: np.ndarray) -> np.ndarray:
        """Value less price [..., requests, K + 1] by drafts verified, of requests that hold so many [..., requests];
        -inf where that is not allowed."""
        left = self._left(held)
        inside, last = (
            self._inside[left[..., :-1], self._rows, self._places[:-1]],
            self._last[left, self._rows, self._places],
        )
        bare = (held > 0)[..., None] & (not self._shape.overlap)
        if bare.any():
            inside = np.where(bare, self._bare[0][left[..., :-1], self._rows, self._places[:-1]], inside)
            last = np.where(bare, self._bare[1][left, self._rows, self._places], last)
        values = self._verified + last
        values[..., 1:] += np.cumsum(inside, -1)
        held = held[..., None]
        allowed = self._places <= held if self._shape.trim else self._places == held
        return np.where(allowed, values, -np.inf)

    def best(self, held: np.ndarray) -> Plans:
        """The plans of highest value less price, of requests that hold so many drafts [..., requests]."""
        values, left = self.values(held), self._left(held)
        verify = values.argmax(-1)
        end = verify[..., None]
        net = np.take_along_axis(values, end, -1)[..., 0]
        opened = np.zeros(values.shape, np.int64)
        known = opened[..., :-1]
        if self.drafting:
            at = left[..., :-1], self._rows, self._places[:-1]
            branching = (self._shape.overlap | (held == 0))[..., None]
            inside = (self._places[:-1] < end) & branching
            use_known = self._use_known[at]
            opened[..., :-1] = self._open.argmax(0)[at] * (inside & ~use_known)
            known = self._known.argmax(0)[at] * (inside & use_known)
            left_last = np.take_along_axis(np.broadcast_to(left, values.shape), end, -1)
            last = self._open_last.argmax(0)[left_last, self._rows, end]
            np.put_along_axis(opened, end, last * branching, -1)
        rows = self._branch_rows[opened].sum(-1) + self._branch_rows[known].sum(-1)
        value = net + self.price * (verify + 1) + (self.draft_price * rows if rows.any() else 0.0)
        return Plans(verify, opened, known, value, verify + 1, rows, net)


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
    seen: set[float] = set()
    for start in (near, *(replace(plain, mean_rows=rows) for rows in STARTS)):
        if start is None or (start is near and not near.drafts):
            continue
        best = max(best, _settle(time, drafts, shape, start, seen), key=lambda point: point.prices.rate)
        if start is near and best.drafts:
            break
    return best if best.prices.rate >= plain.prices.rate * (1 + margin) else plain


def _plain(time: StepTime, drafts: Drafts, shape: Shape) -> Operating:
    """AR: a token for a row."""
    spent = time(1, 0)
    nothing = np.zeros(drafts.open.shape[1] + 1)
    rate = 1 / spent
    alone = rate * (time(2, 0) - spent)
    prices = Prices(rate, alone, np.inf, alone, nothing, nothing, np.zeros(shape.tail + 1))
    return Operating(prices, False, 1.0, 1.0, 0.0, spent, (1.0, 1.0, 1.0))


def _settle(time: StepTime, drafts: Drafts, shape: Shape, start: Operating, seen: set[float]) -> Operating:
    """Policy iteration from ``start``: the best point on the way. It ends where another start's way, of rates ``seen``,
    is met."""
    best = point = start
    for number in range(ROUNDS):
        costs = _Costs.at(time, point.prices.rate, *point.mean_rows)
        prices = replace(point.prices, causal=costs.causal, draft=costs.draft, causal_alone=costs.causal_alone)
        for _ in range(WORTH_ROUNDS):
            before, prices = prices, _worth(drafts, prices, shape, costs)
            if np.abs(prices.ready - before.ready).max() < SETTLED:
                break
        point = _stationary(time, drafts, shape, prices, costs)
        met = point.prices.rate in seen
        seen.add(point.prices.rate)
        if number == 0 or point.prices.rate > best.prices.rate:
            gained, best = point.prices.rate / best.prices.rate - 1, point
            if met or point.draft_rows == 0 or (number and gained < SETTLED):
                break
        else:
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


class _Both:
    """The options of all drafts, in steps that draft and in steps that do not: open ones first, then known, tails."""

    def __init__(self, drafts: Drafts, prices: Prices, shape: Shape):
        places = drafts.open.shape[1]
        tails = (
            np.pad(drafts.tail[:, : shape.tail], ((0, 0), (0, places - shape.tail))) if shape.tail else drafts.tail[:0]
        )
        parts = {"ready": drafts.open, "ready_known": drafts.known, "ready_tail": tails}
        ends = np.cumsum([len(part) for part in parts.values()])
        self.parts = {name: slice(end - len(parts[name]), end) for name, end in zip(parts, ends, strict=True)}
        survival = np.concatenate(list(parts.values()))
        self.held = np.arange(places + 1)[:, None]
        self.second = np.broadcast_to(drafts.second, survival.shape)
        args = (survival, self.second, prices, shape)
        self.with_, self.alone = Options(*args), Options(*args, drafting=False)

    def net(self, shape: Shape, costs: _Costs) -> np.ndarray:
        """Value less cost [K + 1, drafts] of the best plans, by drafts held."""
        with_ = self.with_.values(self.held).max(-1) - costs.fixed
        if not shape.overlap:
            with_[1:] = -np.inf
        return np.maximum(with_, self.alone.values(self.held).max(-1) - costs.fixed_alone)


def _worth(drafts: Drafts, prices: Prices, shape: Shape, costs: _Costs) -> Prices:
    """``prices`` with W worked out anew from what it was."""
    both, made = _Both(drafts, prices, shape), {}
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


def _stationary(time: StepTime, drafts: Drafts, shape: Shape, prices: Prices, costs: _Costs) -> Operating:
    """Play the plans: how often each draft is at hand, and the tokens, rows and time that follow.

    States are drafts of 0 to K tokens, then tails of 1 and more.
    """
    played = _play(time, _Both(drafts, prices, shape), shape, costs)
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
