"""One price for every row: which plan is worth most, for each request, and the price at which that holds.

A request that verifies v of its drafts and keeps a draft of m_p tokens ready for each outcome p is worth

    1 + S_1 + ... + S_v + sum over outcomes p of P_p W(m_p)  -  causal price * (1 + v)  -  draft price * rows

where S_j is the survival of draft j, P_p = S_{p-1} - S_p (the last outcome: S_v), and W(m) is what it is worth to
hold a draft of m tokens rather than none. At given prices the branches of different outcomes do not compete, so the
best plan is found by looking at every v once. AR, AR-row drafting, overlap, quadratic drafting and verification alone
are all plans of this form. W, the prices and the rate (tokens per millisecond, Dinkelbach's multiplier) belong
together: they are the fixed point of an average-reward problem over drafts as they were seen (DESIGN section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

Rows = tuple[float, float]
"""Causal and draft rows of a request in a step that drafts."""
StepTime = Callable[[float, float], float]
"""Milliseconds of a step, divided by its requests, from causal and draft rows per request."""


@dataclass(frozen=True)
class Prices:
    """What rows cost and drafts are worth, in tokens. ``rate`` is tokens per millisecond and request.

    ``ready`` [buckets, m + 1] is W of an open draft of m tokens, ``ready_known`` that of one behind a known token (a
    correction). ``causal_alone`` is the price of a causal row in steps that draft nothing.
    """

    rate: float
    causal: float
    draft: float
    causal_alone: float
    ready: np.ndarray
    ready_known: np.ndarray


@dataclass(frozen=True)
class Shape:
    """How a model's branches turn drafts into rows: each needs ``extra`` rows more than drafts (1 with ``draft_shift``
    0), and an open one comes true with probability ``open_chance`` given its outcome.

    For ablations a part of the freedom can be taken away: without ``trim`` drafts are verified whole, without
    ``overlap`` nothing is drafted beside a verification, and with ``block`` every branch drafts so many tokens.
    """

    extra: int = 0
    open_chance: float = 1.0
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
    """Everything that does not depend on how many drafts are held: what each v is worth and which branches go with it.

    ``survival`` [requests, K] of drafts. ``second`` [requests, K] is the chance that the second-best token is the
    verifier's, given a rejection there. ``bucket`` [requests] chooses the row of W. ``weight`` [requests] multiplies
    what a request's tokens are worth. Without ``drafting`` there are no branches, and rows cost ``causal_alone``.
    """

    def __init__(
        self,
        survival: np.ndarray,
        second: np.ndarray,
        bucket: np.ndarray,
        prices: Prices,
        shape: Shape,
        *,
        drafting: bool = True,
        weight: np.ndarray | None = None,
    ):
        count, places = survival.shape
        self._rows = np.arange(count)
        self.price = prices.causal if drafting else prices.causal_alone
        self.draft_price = prices.draft
        reach = np.ones((count, places + 1))
        reach[:, 1:] = survival
        self.reach = reach
        self.values = np.cumsum(reach, 1)
        if weight is not None:
            self.values *= weight[:, None]
        self.drafting, self._trim = drafting, shape.trim
        self._overlap, self._bare = shape.overlap, self.values - self.price * np.arange(1, places + 2)
        if drafting:
            self._add_branches(survival, second, bucket, prices, shape, weight)
        self.values -= self.price * np.arange(1, places + 2)

    def _add_branches(self, survival, second, bucket, prices: Prices, shape: Shape, weight) -> None:
        drafts = np.arange(prices.ready.shape[1])
        barred = 0.0 if shape.block is None else np.where((drafts == 0) | (drafts == shape.block), 0.0, np.inf)
        self._branch_rows = drafts + shape.extra * (drafts > 0)
        scale = 1.0 if weight is None else weight[:, None]
        worth = (scale * shape.open_chance * prices.ready[bucket])[:, None]  # [requests, 1, m]
        ends = self.reach[:, :-1] - survival  # chance that the text ends at each draft
        cost = prices.draft * self._branch_rows + barred
        inner = ends[..., None] * worth - cost
        last = self.reach[..., None] * worth - cost
        worth_known = (scale * prices.ready_known[bucket])[:, None]
        known = (ends * second)[..., None] * worth_known - cost
        self._inner, self._last, self._known = inner, last, known
        self._gain, self._gain_known = inner.max(2), known.max(2)
        self.values += last.max(2)
        self.values[:, 1:] += np.cumsum(np.maximum(self._gain, self._gain_known), 1)

    def best(self, held: np.ndarray) -> Plans:
        """The plans of highest value less price, of requests that hold so many drafts [requests]."""
        places = self.values.shape[1]
        allowed = np.arange(places) <= held[:, None] if self._trim else np.arange(places) == held[:, None]
        bare = (held > 0) & (not self._overlap)
        values = np.where(allowed, np.where(bare[:, None], self._bare, self.values), -np.inf)
        verify = values.argmax(1)
        net = values[self._rows, verify]
        if not self.drafting:
            none = np.zeros(values.shape, np.int64)
            return Plans(verify, none, none[:, :-1], net + self.price * (verify + 1), verify + 1, none[:, 0], net)
        inside = np.arange(places - 1) < verify[:, None]
        use_known = self._gain_known > self._gain
        opened = np.zeros(values.shape, np.int64)
        opened[:, :-1] = self._inner.argmax(2) * (inside & ~use_known)
        opened[self._rows, verify] = self._last[self._rows, verify].argmax(1)
        known = self._known.argmax(2) * (inside & use_known)
        opened[bare], known[bare] = 0, 0
        rows = self._branch_rows[opened].sum(1) + self._branch_rows[known].sum(1)
        value = net + self.price * (verify + 1) + (self.draft_price * rows if rows.any() else 0.0)
        return Plans(verify, opened, known, value, verify + 1, rows, net)


@dataclass(frozen=True)
class Samples:
    """Drafts as they were seen: survivals [drafts, K] of those from open branches and of those from known tokens, and
    the history bucket [drafts] of their requests, of ``buckets`` in all. ``second`` [K] is the chance that the
    second-best token is the verifier's, given a rejection at that place."""

    open: np.ndarray
    known: np.ndarray
    bucket: np.ndarray
    known_bucket: np.ndarray
    second: np.ndarray
    buckets: int

    def pooled(self) -> Samples:
        """All of them as one bucket."""
        return replace(self, bucket=self.bucket * 0, known_bucket=self.known_bucket * 0, buckets=1)

    def only(self, bucket: int) -> Samples:
        """Those of one bucket, or all where it has none."""
        kept = {}
        for name, place in (("open", "bucket"), ("known", "known_bucket")):
            survival, found = getattr(self, name), getattr(self, place) == bucket
            kept[name] = survival[found] if found.any() else survival
            kept[place] = np.zeros(len(kept[name]), np.int64)
        return replace(self, **kept, buckets=1)


@dataclass(frozen=True)
class Operating:
    """The best stationary way to run: its prices, whether anyone drafts at all, and per step and request its tokens,
    rows and milliseconds. ``buckets``: the prices for requests of each history bucket."""

    prices: Prices
    drafts: bool
    tokens: float
    causal_rows: float
    draft_rows: float
    milliseconds: float
    buckets: tuple[Prices, ...] = ()


STARTS: tuple[Rows, ...] = ((1.0, 1.5), (2.0, 4.0), (3.5, 12.0))
ROUNDS = 6
WORTH_ROUNDS = 5
SETTLED = 1e-3  # a round that raises the rate by less is the last


def solve(time: StepTime, samples: Samples, shape: Shape, *, margin: float = 0.0) -> Operating:
    """The operating point of highest rate, from several starts: step times are not convex, and a start near an earlier
    point settled for less.

    Drafting must beat plain AR by ``margin`` (a share), so that a caller can keep to what it did before.

    ``time`` is asked for rows per request. ``prices`` come from all requests together, ``buckets`` are those of each
    history bucket at the rate that its requests reach alone, taking it that a request stays in its bucket: a request
    has its whole text to write, so that a token of it is worth the time that its own kind pays for one.
    """
    pooled, start = _best(time, samples.pooled(), shape, STARTS, margin)
    each = [_best(time, samples.only(b), shape, (start,), margin)[0] for b in range(samples.buckets)]
    drafts = any(point.drafts for point in (pooled, *each))
    return replace(pooled, drafts=drafts, buckets=tuple(point.prices for point in each))


def _best(
    time: StepTime, samples: Samples, shape: Shape, starts: Sequence[Rows], margin: float
) -> tuple[Operating, Rows]:
    """The best point of ``samples``, taken as one bucket, and the start it was found from."""
    plain = _plain(time, samples)
    tried = [(_settle(time, samples, shape, plain, start), start) for start in starts]
    best, start = max(tried, key=lambda found: found[0].prices.rate)
    pays = best.drafts and best.prices.rate >= plain.prices.rate * (1 + margin)
    return best if pays else plain, start


def _plain(time: StepTime, samples: Samples) -> Operating:
    """AR: a token for a row."""
    spent = time(1, 0)
    nothing = np.zeros((samples.buckets, samples.open.shape[1] + 1))
    rate = 1 / spent
    alone = rate * (time(2, 0) - spent)
    return Operating(Prices(rate, alone, np.inf, alone, nothing, nothing), False, 1.0, 1.0, 0.0, spent)


def _settle(time: StepTime, samples: Samples, shape: Shape, plain: Operating, start: Rows) -> Operating:
    """Policy iteration from mean rows of a drafting step: the best point on the way."""
    (causal, draft), alone, rate = start, start[0], plain.prices.rate
    ready, known = plain.prices.ready, plain.prices.ready_known
    best = plain
    for _ in range(ROUNDS):
        costs = _Costs.at(time, rate, causal, draft, alone)
        for _ in range(WORTH_ROUNDS):
            ready, known = _worth(samples, costs.prices(rate, ready, known), shape, costs)
        point, causal, draft, alone = _stationary(time, samples, shape, costs.prices(rate, ready, known), costs)
        gained = point.prices.rate / rate - 1
        if point.prices.rate > best.prices.rate:
            best = point
        if point.draft_rows == 0 or abs(gained) < SETTLED:
            break
        rate = point.prices.rate
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
        here = time(causal, draft)
        per_causal = max(time(causal + 1, draft) - here, 0.0)
        fewer, more = max(draft - 1, 0.5), draft + 2
        per_draft = max((time(causal, more) - time(causal, fewer)) / (more - fewer), 0.0)
        per_alone = max(time(alone + 1, 0) - time(alone, 0), 0.0)
        return cls(
            fixed=rate * (here - per_causal * causal - per_draft * draft),
            causal=rate * per_causal,
            draft=rate * per_draft,
            fixed_alone=rate * (time(alone, 0) - per_alone * alone),
            causal_alone=rate * per_alone,
        )

    def prices(self, rate: float, ready: np.ndarray, known: np.ndarray) -> Prices:
        return Prices(rate, self.causal, self.draft, self.causal_alone, ready, known)


def _net(survival, second, bucket, prices: Prices, shape: Shape, costs: _Costs) -> np.ndarray:
    """Value less cost [drafts, K + 1] of the best plan, by drafts held."""
    second = np.broadcast_to(second, survival.shape)
    args = (survival, second, bucket, prices, shape)
    with_, alone = Options(*args).values - costs.fixed, Options(*args, drafting=False).values - costs.fixed_alone
    if not shape.overlap:
        with_[:, 1:] = -np.inf
    if shape.trim:
        with_, alone = (np.maximum.accumulate(values, 1) for values in (with_, alone))
    return np.maximum(with_, alone)


def _worth(samples: Samples, prices: Prices, shape: Shape, costs: _Costs) -> tuple[np.ndarray, np.ndarray]:
    """W [buckets, m + 1] of open drafts and of those behind known tokens."""
    made = []
    before = (prices.ready, prices.ready_known)
    for survival, bucket in ((samples.open, samples.bucket), (samples.known, samples.known_bucket)):
        net = _net(survival, samples.second, bucket, prices, shape, costs)
        each = np.array([(net[bucket == b] if (bucket == b).any() else net).mean(0) for b in range(samples.buckets)])
        made.append(np.maximum(each - each[:, :1], 0.0))
    # what a draft is worth stands against drafting now: undamped, each round would answer the last one's excess
    return tuple((old + new) / 2 for old, new in zip(before, made, strict=True))


@dataclass(frozen=True)
class _Played:
    """A step of requests that hold ``m`` drafts: means of tokens, rows, and time, and where it leads."""

    tokens: float
    causal: float
    draft: float
    drafting: float
    milliseconds: float
    moves: np.ndarray


def _stationary(
    time: StepTime, samples: Samples, shape: Shape, prices: Prices, costs: _Costs
) -> tuple[Operating, float, float, float]:
    """Play the plans: how often each draft length is at hand, and the tokens, rows and time that follow.

    Returns the point, and the mean causal and draft rows of steps that draft and causal rows of those that do not.
    """
    args = (samples.open, np.broadcast_to(samples.second, samples.open.shape), samples.bucket, prices, shape)
    with_, alone = Options(*args), Options(*args, drafting=False)
    played = [_play(m, time, with_, alone, args[1], shape, costs) for m in range(samples.open.shape[1] + 1)]
    share = _shares(np.array([p.moves for p in played]))
    tokens, causal, draft, drafting, spent = (
        np.array([getattr(p, name) for p in played])
        for name in ("tokens", "causal", "draft", "drafting", "milliseconds")
    )
    rate = float(share @ tokens / (share @ spent))
    rows = float(share @ causal), float(share @ draft)
    point = Operating(replace(prices, rate=rate), rows[1] > 0, float(share @ tokens), *rows, float(share @ spent))
    busy, idle = share * drafting, share * (1 - drafting)
    if busy.sum() == 0:
        return point, 1.0, 1.0, rows[0]
    mean_causal = float(busy @ causal / busy.sum())
    mean_alone = float(idle @ causal / idle.sum()) if idle.sum() > 0 else mean_causal
    return point, mean_causal, rows[1] / float(busy.sum()), mean_alone


def _play(m: int, time: StepTime, with_: Options, alone: Options, second, shape: Shape, costs: _Costs) -> _Played:
    held = np.full(len(second), m)
    plans, plain = with_.best(held), alone.best(held)
    drafts = (plans.net - costs.fixed > plain.net - costs.fixed_alone) & (plans.draft_rows > 0)
    drafts &= shape.overlap or m == 0
    verify = np.where(drafts, plans.verify, plain.verify)
    rows = np.where(drafts, plans.draft_rows, 0)
    share = float(drafts.mean())
    spent = share and share * time(float((verify + 1)[drafts].mean()), float(rows[drafts].mean()))
    spent += (1 - share) and (1 - share) * time(float((verify + 1)[~drafts].mean()), 0)
    tokens = np.cumsum(with_.reach, 1)[np.arange(len(verify)), verify].mean()
    moves = _moves(with_.reach, second, plans, drafts, shape)
    return _Played(float(tokens), float((verify + 1).mean()), float(rows.mean()), share, spent, moves)


def _moves(reach: np.ndarray, second: np.ndarray, plans: Plans, drafts: np.ndarray, shape: Shape) -> np.ndarray:
    """Chances [K + 1] of the next draft's length."""
    ends = np.append(reach[:, :-1] - reach[:, 1:], np.zeros((len(reach), 1)), 1)
    rows = np.arange(len(reach))
    ends[rows, plans.verify] = reach[rows, plans.verify]
    opened = ends * shape.open_chance * (drafts[:, None] & (plans.open > 0))
    known = ends[:, :-1] * second * (drafts[:, None] & (plans.known > 0))
    moves = np.bincount(plans.open.ravel(), opened.ravel(), reach.shape[1])
    moves += np.bincount(plans.known.ravel(), known.ravel(), reach.shape[1])
    moves /= len(reach)
    moves[0] = 1 - moves[1:].sum()
    return moves


def _shares(move: np.ndarray) -> np.ndarray:
    """The stationary distribution of a chain [states, states]."""
    size = len(move)
    system = np.vstack((move.T - np.eye(size), np.ones(size)))
    share = np.maximum(np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0], 0)
    return share / share.sum()
