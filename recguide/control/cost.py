"""What a step costs on this device: a measured table over requests, rows and context, read with interpolation.

Rows are bought twice dear where they draft (the adapter's products), so two tables are kept: steps of causal rows, and
steps in which every request has one causal row and drafts behind it. Nothing is assumed of their shape: step times jump
at tiles and cache sizes, and may fall.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from recguide.control.refine import Errors, Kind, Refinement
from recguide.errors import RecGuideError
from recguide.models.cache_dir import cache_dir
from recguide.provenance import write_json

SCHEMA = 2
ENOUGH = 6  # drafting steps of a load that have told what such steps take
Nested = list[list[list[float]]]


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


class CostTable:
    """Milliseconds of a step. ``causal`` and ``drafting`` [requests, rows, contexts] are the two measured tables.

    In ``drafting`` a request has one causal row and ``rows`` draft rows. ``foreign``: another device's table, which is
    doubted more.
    """

    def __init__(
        self,
        identity: Identity,
        axes: Axes,
        causal: np.ndarray,
        drafting: np.ndarray,
        about: dict[str, Any],
        *,
        foreign: bool = False,
    ):
        for name, table in (("causal", causal), ("drafting", drafting)):
            if table.shape != axes.shape or not np.isfinite(table).all() or (table <= 0).any():
                raise RecGuideError(f"{name}: expected positive times of shape {axes.shape}; measure the profile again")
        self.identity, self.axes, self.causal, self.drafting, self.about = identity, axes, causal, drafting, about
        self._causal, self._drafting = (_continued(table, axes).tolist() for table in (causal, drafting))
        self._points = tuple((*axis, 2 * axis[-1]) for axis in (axes.requests, axes.rows, axes.contexts))
        self._least = float(causal.min()) / 2
        self._seen = Refinement(len(axes.requests), foreign=foreign)
        self._drafted: Counter[int] = Counter()

    def predict(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """Milliseconds of a step with so many rows in all, ``context`` cached tokens per request on average.

        Beyond the grid the last two points of an axis are continued in a straight line, or half as steep as the whole
        axis is where that is more: a last point that was measured too low must not make rows free.
        """
        return self.pace * self.errors(requests).corrected(self.told, requests, causal_rows, draft_rows, context)

    def errors(self, requests: int) -> Errors:
        """What steps of so many requests take beyond the pace of all, to what the table says."""
        return self._seen.errors(self._load(requests))

    @property
    def pace(self) -> float:
        """What all predictions are multiplied by, since steps take longer or shorter now, whatever they are."""
        return self._seen.pace

    def told(self, requests: float, causal_rows: float, draft_rows: float, context: float) -> float:
        """What the table itself says of such a step."""
        rows = (causal_rows + draft_rows) / requests
        cost = self._read(self._causal, requests, rows, context)
        if draft_rows:
            each = draft_rows / requests
            drafting, causal = self._read(self._drafting, requests, each, context), self._causal
            cost += max(drafting - self._read(causal, requests, each + 1, context), 0.0)
        return max(cost, self._least)

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """Refine the table by a step that was made: the pace of all steps, and how its kind and size differ."""
        load, kind = self._load(requests), Kind.of(requests, causal_rows, draft_rows)
        told, plain = self.told(requests, causal_rows, draft_rows, context), self.told(requests, requests, 0, context)
        self._seen.observe(load, kind, measured_ms / told, told / plain)
        self._drafted[load] += kind is Kind.DRAFTING

    def drafting_seen(self, requests: int) -> bool:
        """Whether steps of so many requests that draft were seen here often enough to correct the table."""
        return self._drafted[self._load(requests)] >= ENOUGH

    def _load(self, requests: float) -> int:
        return _nearest(self.axes.requests, requests)

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


@lru_cache(maxsize=1024)
def _nearest(axis: tuple[int, ...], at: float) -> int:
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


def load_cost_table(path: Path, identity: Identity, *, foreign: bool = False) -> CostTable:
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
    return CostTable(found, axes, *tables, about, foreign=foreign)


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
