"""The step time a policy plans with: the cost table measured here, or a plain line that says what it is."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar, Protocol

from recguide.control.cost import CostTable, Identity, load_cost_table, stored_identity
from recguide.control.profile import identity_of
from recguide.control.refine import Errors
from recguide.errors import RecGuideError
from recguide.models.cache_dir import cache_dir
from recguide.models.loader import Model


class StepTime(Protocol):
    @property
    def pace(self) -> float:
        """What all predictions are multiplied by, since the machine is slower or faster now than it was."""

    def told(self, requests: float, causal_rows: float, draft_rows: float, context: float) -> float:
        """Milliseconds of a step with so many rows in all and ``context`` cached tokens per request on average, before
        anything was seen here."""

    def predict(self, requests: float, causal_rows: float, draft_rows: float, context: float) -> float:
        """What such a step is believed to take now: what was told, corrected by errors, times the pace."""

    def errors(self, requests: int) -> Errors:
        """What steps of so many requests were seen to take beyond the pace, to what was told."""

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """Take in what such a step took."""

    def drafting_seen(self, requests: int) -> bool:
        """Whether predictions for drafting steps of so many requests rest on such steps, made here."""


@dataclass(frozen=True)
class RowCost:
    """Where nothing was measured: a floor and so much a row, twice for rows that draft.

    The default is the embedded model in bfloat16 on two cores, where some 30 rows double the time of one.
    """

    floor_ms: float = 20.0
    row_ms: float = 0.65
    pace: ClassVar[float] = 1.0

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """A line has nothing to refine."""

    def drafting_seen(self, requests: int) -> bool:
        """A line will never be better than it is."""
        return True

    def errors(self, requests: int) -> Errors:
        return Errors()

    def told(self, requests: float, causal_rows: float, draft_rows: float, context: float) -> float:
        return self.floor_ms + self.row_ms * (causal_rows + 2 * draft_rows)

    predict = told


def step_time_of(model: Model) -> tuple[StepTime, str | None]:
    """The table of the simulated device or the cached one of this model and device; else the shipped one of another
    device, or the plain line, and why in words."""
    if model.cost_table is not None:
        return load_cost_table(model.cost_table, stored_identity(model.cost_table)), None
    identity = identity_of(model)
    try:
        return load_cost_table(identity.path, identity), None
    except RecGuideError as fault:
        why = str(fault).removeprefix(f"{identity.path}: ")
    shipped = _shipped(model.name, identity)
    if shipped is not None:
        device, adapter = shipped.about["provenance"]["device"], shipped.identity.adapter
        other = device if adapter == identity.adapter else f"{device}, adapter {adapter}"
        return shipped, f"step times are those of another device ({other}), corrected while running ({why})"
    line = RowCost()
    return line, f"steps are taken to cost {line.floor_ms:g} ms and {line.row_ms:g} ms a row ({why})"


def _shipped(name: str, identity: Identity) -> CostTable | None:
    """The table in ``data/`` for this model and dtype, whatever device and adapter it was measured with."""
    path = Path(str(resources.files("recguide.data") / "profiles" / f"{name}-{identity.dtype}.json"))
    if not path.exists():
        return None
    found = stored_identity(path)
    return (
        load_cost_table(path, found, foreign=True)
        if (found.model, found.dtype) == (identity.model, identity.dtype)
        else None
    )


def table_of(model: str) -> CostTable | None:
    """The newest table of the model with this fingerprint that was measured here, or the one that ships with it."""
    here = sorted((cache_dir() / "profiles").glob(f"{model}-*.json"), key=lambda path: path.stat().st_mtime)
    shipped = sorted(Path(str(resources.files("recguide.data") / "profiles")).glob("*.json"))
    for path in (*reversed(here), *shipped):
        with contextlib.suppress(RecGuideError):  # of an older schema, or damaged
            found = stored_identity(path)
            if found.model == model:
                return load_cost_table(path, found)
    return None
