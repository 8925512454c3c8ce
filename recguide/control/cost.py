"""What a step costs on this device: a measured table over requests, rows and context, read with interpolation.

Rows are bought twice dear where they draft (the adapter's products), so two tables are kept: steps of causal rows, and
steps in which every request has one causal row and drafts behind it. Nothing is assumed of their shape: step times jump
at tiles and cache sizes, and may fall.
"""

from __future__ import annotations

import bisect
import json
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recguide.errors import RecGuideError
from recguide.models.cache_dir import cache_dir
from recguide.provenance import write_json

SCHEMA = 2
RECENT = 31  # observations that a correction is the median of
QUICK, HICCUP = 0.1, 1.5  # weight of a step for the pace of all, and how far from that pace one may count
ENOUGH = 6  # observations before a correction counts
TRUST = 8  # observations that count as much as the table: the machine's pace moves while they are made
LASTING = 1000  # steps after which what was last seen of a kind of step counts no more
Nested = list[list[list[float]]]
Kind = tuple[int, bool]


@dataclass(frozen=True)
class Identity:
    """What a table was measured on: it is of no use for anything else. ``adapter`` is the number and rank of its
    products, which is what it costs."""

    model: str
    adapter: str
    dtype: str
    profile: str

    @property
    def path(self) -> Path:
        """Where the table of this model and device is cached."""
        return cache_dir() / "profiles" / f"{self.model}-{self.adapter}-{self.dtype}-{self.profile}.json"


@dataclass(frozen=True)
class Axes:
    """Grid points, each ascending: requests in the step, rows of each request, tokens in each request's cache."""

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    contexts: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise RecGuideError(f"{name} are {values}; give ascending whole numbers from 1 on")

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.requests), len(self.rows), len(self.contexts)


class Recent:
    """The median of the last observations: a machine that is busy with something else for a moment tells nothing about
    a kind of step."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=RECENT)
        self._count, self._last = 0, 0
        self.median, self.ever = 1.0, False

    def add(self, value: float, now: int) -> None:
        if now - self._last > LASTING:
            self._values.clear()
            self._count = 0
        self._values.append(value)
        self._count, self._last, self.median = self._count + 1, now, statistics.median(self._values)
        self.ever = self.ever or self._count >= ENOUGH

    @property
    def believed(self) -> float:
        """The median, as far as there are enough observations to be believed over the table."""
        return self.median ** (self._count / (self._count + TRUST))

    def known(self, now: int) -> bool:
        """Whether enough was seen, and not too many steps ago."""
        return self._count >= ENOUGH and now - self._last <= LASTING


class Pace:
    """How much longer steps take now than the table says, whatever they are: the machine is busy, or another. A mean
    that forgets."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self.mean = 1.0

    @property
    def known(self) -> bool:
        return len(self._first) == ENOUGH

    def add(self, value: float) -> None:
        if self.known:
            value = min(max(value, self.mean / HICCUP), self.mean * HICCUP)
            self.mean += QUICK * (value - self.mean)
        else:
            self._first.append(value)
            self.mean = statistics.median(self._first)


class CostTable:
    """Milliseconds of a step. ``causal`` and ``drafting`` [requests, rows, contexts] are the two measured tables.

    In ``drafting`` a request has one causal row and ``rows`` draft rows.
    """

    def __init__(self, identity: Identity, axes: Axes, causal: np.ndarray, drafting: np.ndarray, about: dict[str, Any]):
        for name, table in (("causal", causal), ("drafting", drafting)):
            if table.shape != axes.shape or not np.isfinite(table).all() or (table <= 0).any():
                raise RecGuideError(f"{name}: expected positive times of shape {axes.shape}; measure the profile again")
        self.identity, self.axes, self.causal, self.drafting, self.about = identity, axes, causal, drafting, about
        self._causal, self._drafting = (_continued(table, axes).tolist() for table in (causal, drafting))
        self._points = tuple((*axis, 2 * axis[-1]) for axis in (axes.requests, axes.rows, axes.contexts))
        self._least = float(causal.min()) / 2
        self._steps = 0
        self._pace = Pace()
        self._cells: defaultdict[tuple[int, int, int], Recent] = defaultdict(Recent)
        self._kinds: defaultdict[Kind, Recent] = defaultdict(Recent)

    def predict(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """Milliseconds of a step with so many rows in all, ``context`` cached tokens per request on average.

        Beyond the grid the last two points of an axis are continued in a straight line, or half as steep as the whole
        axis is where that is more: a last point that was measured too low must not make rows free.
        """
        table = self._measured(requests, causal_rows, draft_rows, context)
        seen = self._seen(*self._cell(requests, causal_rows, draft_rows))
        return self.pace * (seen.believed if seen else 1.0) * table

    @property
    def pace(self) -> float:
        """What all predictions are multiplied by, since steps take longer or shorter now, whatever they are."""
        return self._pace.mean if self._pace.known else 1.0

    def _measured(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """What the table itself says."""
        rows = (causal_rows + draft_rows) / requests
        cost = self._read(self._causal, requests, rows, context)
        if draft_rows:
            each = draft_rows / requests
            drafting, causal = self._read(self._drafting, requests, each, context), self._causal
            cost += max(drafting - self._read(causal, requests, each + 1, context), 0.0)
        return max(cost, self._least)

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """Refine the table by a step that was made: the pace of all steps, and how steps like it and of its kind differ
        from the others."""
        self._steps += 1
        now, cell, kind = self._steps, *self._cell(requests, causal_rows, draft_rows)
        ratio = measured_ms / self._measured(requests, causal_rows, draft_rows, context)
        mine = self._cells[cell], self._kinds[kind]
        if not self._pace.known:
            self._pace.add(ratio)
        elif self._cells[cell].known(now):  # else it may be the step, not the pace
            self._pace.add(ratio / self._cells[cell].median)
        for seen in mine:
            seen.add(min(max(ratio / self._pace.mean, 0.5), 2.0), now)

    def drafting_seen(self, requests: int) -> bool:
        """Whether steps of so many requests that draft were ever seen here often enough to correct the table."""
        return self._kinds[_nearest(self.axes.requests, requests), True].ever

    def _seen(self, cell: tuple[int, int, int], kind: Kind) -> Recent | None:
        """What steps like this one took, to what table and pace say: of the nearest cell, else of the kind."""
        found = (self._cells.get(cell), self._kinds.get(kind))
        return next((seen for seen in found if seen is not None and seen.known(self._steps)), None)

    def _cell(self, requests: float, causal_rows: float, draft_rows: float) -> tuple[tuple[int, int, int], Kind]:
        """Grid places of requests, causal rows and draft rows each (-1: none), and the kind of step: whether it
        drafts."""
        axes = self.axes
        at = _nearest(axes.requests, requests)
        drafts = _nearest(axes.rows, draft_rows / requests) if draft_rows else -1
        return (at, _nearest(axes.rows, causal_rows / requests), drafts), (at, draft_rows > 0)

    def _read(self, table: Nested, requests: float, rows: float, context: float) -> float:
        """Linear between grid points; in plain numbers, since this runs several times in every planned step."""
        (i, u), (j, v), (k, w) = map(_place, self._points, (requests, rows, context))
        next_i, next_j, next_k = i + 1, j + 1, k + 1

        def along(line: list[float]) -> float:
            return (1 - w) * line[k] + w * line[next_k]

        near = (1 - v) * along(table[i][j]) + v * along(table[i][next_j])
        far = (1 - v) * along(table[next_i][j]) + v * along(table[next_i][next_j])
        return (1 - u) * near + u * far

    # -- the file ----------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        write_json(
            path,
            {
                "schema": SCHEMA,
                "identity": asdict(self.identity),
                "axes": asdict(self.axes),
                "causal_ms": self.causal.tolist(),
                "drafting_ms": self.drafting.tolist(),
                "about": self.about,
            },
        )


def _continued(table: np.ndarray, axes: Axes) -> np.ndarray:
    """The table with one point more at the end of every axis, at twice the last."""
    for number, axis in enumerate((axes.requests, axes.rows, axes.contexts)):
        line = np.moveaxis(table, number, 0)
        steep = np.zeros_like(line[0])
        if len(axis) > 1:
            last = (line[-1] - line[-2]) / (axis[-1] - axis[-2])
            steep = np.maximum(np.maximum(last, 0.5 * (line[-1] - line[0]) / (axis[-1] - axis[0])), 0.0)
        table = np.moveaxis(np.concatenate((line, (line[-1] + axis[-1] * steep)[None])), 0, number)
    return table


def _nearest(axis: Sequence[int], at: float) -> int:
    """The grid point nearest by ratio."""
    low, weight = _place(axis, at)
    if weight <= 0 or len(axis) == 1:
        return low
    return low + (at * at > axis[low] * axis[low + 1])


def _place(axis: Sequence[int], at: float) -> tuple[int, float]:
    """The grid point at or before ``at``, and how far towards the next one it lies (beyond the ends: <0, >1)."""
    if len(axis) == 1:
        return 0, 0.0
    low = min(max(bisect.bisect_right(axis, at) - 1, 0), len(axis) - 2)
    return low, (at - axis[low]) / (axis[low + 1] - axis[low])


def stored_identity(path: Path) -> Identity:
    """What a stored table was measured on. RecGuideError when it is none."""
    return Identity(**_raw(path)["identity"])


def load_cost_table(path: Path, identity: Identity) -> CostTable:
    """A stored table; RecGuideError when it is damaged, of another schema, or of another model or device."""
    raw = _raw(path)
    try:
        found = Identity(**raw["identity"])
        axes = Axes(**{name: tuple(values) for name, values in raw["axes"].items()})
        tables = [np.array(raw[name], dtype=np.float64) for name in ("causal_ms", "drafting_ms")]
        about = raw["about"]
    except (ValueError, KeyError, TypeError) as fault:
        raise _no_table(path, fault) from None
    for name, wanted in asdict(identity).items():
        if getattr(found, name) != wanted:
            raise RecGuideError(
                f"{path}: was measured for {name} {getattr(found, name)}, here it is {wanted}; run 'recguide profile'"
            )
    return CostTable(found, axes, *tables, about)


def _raw(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
        schema = raw["schema"]
    except FileNotFoundError:
        raise RecGuideError(f"{path}: no cost table; 'recguide profile' measures one") from None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise _no_table(path, fault) from None
    if schema != SCHEMA:
        raise RecGuideError(f"{path}: schema {schema}, this version reads {SCHEMA}; run 'recguide profile'")
    return raw


def _no_table(path: Path, fault: Exception) -> RecGuideError:
    return RecGuideError(f"{path}: not a cost table ({fault!r}); delete it and run 'recguide profile'")
