"""The rows of a step as attention sees them: one description that both versions of the kernel start from.

Keys are numbered within a request: the cached ones, then the step's own rows, whose K/V stand behind them in the same
cache slot. One rule says what a row sees: keys below its ``limit``, and keys of its own segment ``[low, high)``. What
the rows are (trunk, branch, prompt) is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import fold_mask


@dataclass(frozen=True, slots=True)
class StepRows:
    """Per request: cache slot, its flat row numbers in the order of their keys, and how many keys it has with them.

    Per flat row: the rule's ``limits``, ``lows`` and ``highs`` (low = high: no segment).
    """

    slots: list[int]
    owned: list[list[int]]
    keys: list[int]
    limits: list[int]
    lows: list[int]
    highs: list[int]

    @property
    def total(self) -> int:
        return len(self.limits)


class Places(NamedTuple):
    """Where a step's rows go: slots and keys int64 [rows]; rows from ``first_draft_row`` on are drafts."""

    slots: Tensor
    keys: Tensor
    first_draft_row: int


@dataclass(slots=True)
class Group:
    """Requests whose attention is computed together by dense products. ``rows`` [slots, padded] are flat row numbers.

    ``slots`` may hold slots of no request of the group; their rows are padding too.
    """

    slots: list[int]
    keys: int
    rows: Tensor
    real: Tensor | None  # flat places in [slots * padded] that are not padding; None: no padding
    blocked: Tensor | None  # folded mask of the keys from ``first`` on, True where a row may not look
    first: int  # keys below are seen by all rows

    def to(self, device: torch.device) -> Group:
        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device)

        return Group(self.slots, self.keys, move(self.rows), move(self.real), move(self.blocked), self.first)


def groups_of(step: StepRows, group_size: int) -> list[Group]:
    """Requests with the same number of rows, rounded up to a power of two, share a group, in slot order."""
    buckets: dict[int, list[int]] = {}
    for index in sorted(range(len(step.slots)), key=step.slots.__getitem__):
        buckets.setdefault((len(step.owned[index]) - 1).bit_length(), []).append(index)
    bounds = torch.tensor((step.limits, step.lows, step.highs), dtype=torch.int32)
    return [_group(step, members, bounds, group_size) for members in buckets.values()]


def _group(step: StepRows, members: list[int], bounds: Tensor, group_size: int) -> Group:
    owned = {step.slots[i]: step.owned[i] for i in members}
    width = max(len(rows) for rows in owned.values())
    keys = max(step.keys[i] for i in members)
    slots = _span(list(owned))
    places = [owned.get(slot, []) for slot in slots]
    filler = step.owned[members[0]][-1:]
    flat = torch.tensor([rows + (rows[-1:] or filler) * (width - len(rows)) for rows in places])  # padding repeats
    padded = any(len(rows) < width for rows in places)
    real = torch.tensor([i * width + j for i, rows in enumerate(places) for j in range(len(rows))]) if padded else None
    mine = bounds[:, flat]
    first = min(int(mine[0].min()), keys)
    return Group(slots, keys, flat, real, fold_mask(blocked_keys(mine, first, keys), group_size), first)


def _span(slots: list[int]) -> list[int]:
    """The slots to read. Where most of a range is wanted, the whole range: a view of the cache instead of a copy."""
    first, last = min(slots), max(slots)
    return list(range(first, last + 1)) if last - first + 1 <= 2 * len(slots) else slots


def blocked_keys(bounds: Tensor, first: int, keys: int) -> Tensor | None:
    """The one mask builder, for the keys from ``first`` to ``keys``. bounds [3, requests, rows] = limit, low, high.

    True where a row may not look; None when every row sees every key.
    """
    limit, low, high = bounds[..., None]
    key = torch.arange(first, keys, dtype=bounds.dtype)
    blocked = (key >= limit) & ((key < low) | (key >= high))
    return blocked if blocked.any() else None
