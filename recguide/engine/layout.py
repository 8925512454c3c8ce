"""Layout: the plans of a step as flat rows, with positions, cache places, masks and the rows that need logits.

Flat order: the trunk rows of every request, then the branch rows of every request (their known tokens first, where the
adapter does not serve these), so that the draft adapter serves one slice. Nothing is padded, except inside attention,
where requests with a similar number of rows may share a product (``recguide.kernels`` decides).

One rule says what a row sees (keys are numbered within a request: ``n`` cached ones, then this step's rows in local
order, trunk first): keys below ``limit``, and keys in its own segment ``[low, high)``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from recguide.engine.plan import Branch
from recguide.kernels.rows import StepRows


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's part of a step: ``trunk`` tokens at positions ``cached...``, and branches.

    The last ``scored`` trunk rows need logits; the trunk's first ``prefill`` rows are prompt that has no K/V yet, so a
    branch with parent p sees ``prefill + p`` trunk rows. ``base`` is the position of the seed.
    """

    slot: int
    cached: int
    trunk: tuple[int, ...]
    scored: int
    prefill: int = 0
    branches: tuple[Branch, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.trunk) + sum(b.rows for b in self.branches)


@dataclass(slots=True)
class Layout:
    """A step as arrays. ``trunk_logits[i]`` and ``branch_logits[i][b]`` are slices of the logits, per segment.

    ``all_rows_scored``: the logits rows are all rows in order (no prompt rows, no seeds of branches).
    """

    tokens: Tensor
    positions: Tensor
    first_draft_row: int
    mask_rows: Tensor
    logit_rows: Tensor
    row_slots: Tensor
    row_keys: Tensor
    attention: StepRows
    trunk_logits: list[slice]
    branch_logits: list[list[slice]]
    all_rows_scored: bool

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Layout:
        """The same layout with its tensors on ``device`` (itself on a CPU)."""
        if device.type == "cpu":
            return self
        move = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in move.items()}
        return Layout(**moved)


class _Rows:
    """Columns of the flat rows while they are being collected."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.keys: list[int] = []
        self.limits: list[int] = []
        self.lows: list[int] = []
        self.highs: list[int] = []
        self.masks: list[int] = []
        self.logits: list[int] = []
        self.owned: list[list[int]] = []

    def add(self, count: int, tokens: list[int], position: int, slot: int, key: int) -> range:
        first = len(self.tokens)
        self.tokens += tokens
        self.positions += range(position, position + count)
        self.slots += [slot] * count
        self.keys += range(key, key + count)
        return range(first, first + count)


def build_layout(segments: list[Segment], mask_id: int, *, adapt_tokens: bool = True) -> Layout:
    """Lay out the segments of one step.

    Without ``adapt_tokens`` the known tokens of branches are causal rows on the plain weights, like the trunk's.
    """
    rows = _Rows()
    trunk_logits = [_add_trunk(rows, s) for s in segments]
    heads = None if adapt_tokens else [_add_tokens(rows, i, s) for i, s in enumerate(segments)]
    first_draft_row = len(rows.tokens)
    branch_logits = [_add_branches(rows, i, s, mask_id, heads and heads[i]) for i, s in enumerate(segments)]
    return Layout(
        tokens=torch.tensor(rows.tokens),
        positions=torch.tensor(rows.positions),
        first_draft_row=first_draft_row,
        mask_rows=torch.tensor(rows.masks, dtype=torch.int64),
        logit_rows=torch.tensor(rows.logits, dtype=torch.int64),
        row_slots=torch.tensor(rows.slots),
        row_keys=torch.tensor(rows.keys),
        attention=StepRows(
            slots=[s.slot for s in segments],
            owned=rows.owned,
            keys=[s.cached + s.rows for s in segments],
            limits=rows.limits,
            lows=rows.lows,
            highs=rows.highs,
        ),
        trunk_logits=trunk_logits,
        branch_logits=branch_logits,
        all_rows_scored=rows.logits == list(range(len(rows.tokens))),
    )


def _add_trunk(rows: _Rows, s: Segment) -> slice:
    count = len(s.trunk)
    flat = rows.add(count, list(s.trunk), s.cached, s.slot, s.cached)
    rows.limits += range(s.cached + 1, s.cached + count + 1)
    rows.lows += [0] * count
    rows.highs += [0] * count
    rows.owned.append(list(flat))
    first = len(rows.logits)
    rows.logits += flat[count - s.scored :]
    return slice(first, first + s.scored)


def _add_tokens(rows: _Rows, index: int, s: Segment) -> list[int | None]:
    """The known tokens of a segment's branches as causal rows; their flat row numbers."""
    heads: list[int | None] = []
    key = s.cached + len(s.trunk)
    for branch in s.branches:
        heads.append(None)
        if branch.token is not None:
            start = s.cached + s.prefill + branch.parent
            (heads[-1],) = rows.add(1, [branch.token], start, s.slot, key)
            rows.limits.append(start)
            rows.lows.append(key)
            rows.highs.append(key + 1)
            rows.owned[index].append(heads[-1])
        key += branch.rows
    return heads


def _add_branches(rows: _Rows, index: int, s: Segment, mask_id: int, heads: list[int | None] | None) -> list[slice]:
    """Rows of a segment's branches, without those that are in ``heads`` already."""
    slices = []
    key = s.cached + len(s.trunk)
    for number, branch in enumerate(s.branches):
        start = s.cached + s.prefill + branch.parent
        before = [] if heads is None or heads[number] is None else [heads[number]]
        tokens = [mask_id if token is None else token for token in branch.tokens][len(before) :]
        flat = rows.add(len(tokens), tokens, start + len(before), s.slot, key + len(before))
        rows.limits += [start] * len(tokens)
        rows.lows += [key] * len(tokens)
        rows.highs += [key + branch.rows] * len(tokens)
        rows.owned[index] += flat
        own = [*before, *flat]
        first = len(rows.logits)
        rows.masks += [row for row, token in zip(own, branch.tokens, strict=True) if token is None]
        rows.logits += [row for row, wanted in zip(own, branch.scored, strict=True) if wanted]
        slices.append(slice(first, len(rows.logits)))
        key += branch.rows
    return slices
