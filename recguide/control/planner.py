"""One price for every row: which plan is worth most, for each request, and the price at which that holds.

A request that verifies v of its drafts and keeps a draft of m_p tokens ready for each outcome p is worth

    1 + S_1 + ... + S_v + sum over outcomes p of P_p W(m_p)  -  causal price * (1 + v)  -  draft price * rows

where S_j is the survival of draft j, P_p = S_{p-1} - S_p (the last outcome: S_v), and W(m) is what it is worth to
hold a draft of m tokens rather than none. An outcome that nothing was kept ready for leaves a tail, where the policy
keeps tails: the rest of the draft, chosen again, which costs no row; a branch is worth what it is better than that.
At given prices the branches of different outcomes do not compete, so the best plan is found by looking at every v
once. AR, AR-row drafting, overlap, quadratic drafting and verification alone are all plans of this form. Where the
prices come from: ``solve``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
    ``drafting`` there are no branches, and rows cost ``causal_alone``. A plan that verifies nothing costs ``plain``
    more.
    """

    def __init__(
        self,
        survival: np.ndarray,
        second: np.ndarray,
        prices: Prices,
        shape: Shape,
        *,
        drafting: bool = True,
        plain: float = 0.0,
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
        self._verified[:, 0] -= plain
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
        inner, outer = (left[..., :-1], self._rows, self._places[:-1]), (left, self._rows, self._places)
        inside, last = self._inside[inner], self._last[outer]
        bare = (held > 0)[..., None] & (not self._shape.overlap)
        if bare.any():
            inside, last = np.where(bare, self._bare[0][inner], inside), np.where(bare, self._bare[1][outer], last)
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
