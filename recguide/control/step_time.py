"""The step time a policy plans with: the cost table measured here, or a plain line that says what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recguide.control.cost import load_cost_table
from recguide.control.profile import identity_of
from recguide.errors import RecGuideError
from recguide.models.loader import Model


class StepTime(Protocol):
    def predict(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        """Milliseconds of a step with so many rows in all, ``context`` cached tokens per request on average."""

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """Take in what such a step took."""


@dataclass(frozen=True)
class RowCost:
    """Where nothing was measured: a floor and so much a row, twice for rows that draft.

    The default is the embedded model in bfloat16 on two cores, where some 30 rows double the time of one.
    """

    floor_ms: float = 20.0
    row_ms: float = 0.65

    def observe(self, measured_ms: float, requests: int, causal_rows: int, draft_rows: int, context: float) -> None:
        """A line has nothing to refine."""

    def predict(self, requests: int, causal_rows: int, draft_rows: int, context: float) -> float:
        return self.floor_ms + self.row_ms * (causal_rows + 2 * draft_rows)


def step_time_of(model: Model) -> tuple[StepTime, str | None]:
    """The cached table of this model and device; else the plain line, and why in words."""
    identity = identity_of(model)
    try:
        return load_cost_table(identity.path, identity), None
    except RecGuideError as fault:
        line, why = RowCost(), str(fault).removeprefix(f"{identity.path}: ")
        return line, f"steps are taken to cost {line.floor_ms:g} ms and {line.row_ms:g} ms a row ({why})"
