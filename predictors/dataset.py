"""From decision logs to tables that a model can be fitted on: one row for every draft position, grouped by request.

Feedback is censored: only positions that the verifier reached say something, and a fully accepted draft says "at
least". Rows are therefore person-period data: one for each reached position, never one for a position that was not
reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recguide.control.features import HISTORY, KINDS, MOST, block_features, draft_features, history
from recguide.errors import RecGuideError
from recguide.trace.reader import Trace, read_traces, with_verifications

LEAST_REQUESTS, LEAST_POSITIONS = 8, 200


@dataclass(frozen=True)
class Dataset:
    """Drafts that were held when something was verified, padded to K places.

    ``top1``, ``margin``, ``entropy`` [drafts, K] are NaN behind a draft's end; ``length``, ``kind``, ``group`` (the
    request) [drafts]; ``histories`` [drafts, 4] before the verification; ``reached``, ``accepted``, ``second_right``
    bool [drafts, K]; ``previous`` [drafts] the drafts verified the time before, -1 the first time.
    """

    top1: np.ndarray
    margin: np.ndarray
    entropy: np.ndarray
    length: np.ndarray
    kind: np.ndarray
    group: np.ndarray
    histories: np.ndarray
    reached: np.ndarray
    accepted: np.ndarray
    second_right: np.ndarray
    previous: np.ndarray
    model: str
    draft_shift: int

    def __len__(self) -> int:
        return len(self.length)

    def draft_rows(self) -> np.ndarray:
        """MISMATCH features [drafts, K, features]."""
        columns = np.nan_to_num(self.top1, nan=0.5), np.nan_to_num(self.margin), self.kind, self.histories
        drafts = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([draft_features(*draft) for draft in drafts], np.float32)

    def block_rows(self) -> np.ndarray:
        """UTILITY features [drafts, K, features]."""
        return block_features(self.top1.shape[1], self.kind, self.histories)

    def take(self, chosen: np.ndarray) -> Dataset:
        """The drafts that ``chosen`` (mask or indices) names."""
        arrays = {n: v[chosen] for n, v in vars(self).items() if isinstance(v, np.ndarray)}
        return Dataset(**arrays, model=self.model, draft_shift=self.draft_shift)


def read_dataset(folders: Sequence[Path]) -> Dataset:
    """``dataset_of`` the runs in these folders."""
    return dataset_of(read_traces(folders))


def dataset_of(traces: Sequence[Trace]) -> Dataset:
    """All verified drafts of some runs of one model.

    RecGuideError for drafters of different conventions, missing signals, or too little to learn from.
    """
    shifts = {trace.manifest.get("draft_shift", 0) for trace in traces}
    if len(shifts) > 1:
        raise RecGuideError("logs of drafters with different conventions (draft_shift); train on one at a time")
    parts = [_drafts(trace, number) for number, trace in enumerate(traces)]
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    dataset = Dataset(**merged, model=traces[0].manifest["model_fingerprint"], draft_shift=shifts.pop())
    _check(dataset, ", ".join(str(trace.folder) for trace in traces))
    return dataset


def _check(data: Dataset, where: str) -> None:
    requests, reached = len(np.unique(data.group)), int(data.reached.sum())
    if requests < LEAST_REQUESTS or reached < LEAST_POSITIONS:
        raise RecGuideError(
            f"{where}: {requests} requests with {reached} reached draft positions are too few to learn from; "
            f"record at least {LEAST_REQUESTS} and {LEAST_POSITIONS}"
        )
    signals = data.reached & ~np.isfinite(data.top1 + data.margin)
    if signals.any():
        raise RecGuideError(
            f"{where}: {int(signals.sum())} draft positions have no finite signals (top1, margin); "
            "leave that run out, or record it again"
        )
    share = data.accepted.sum() / reached
    if share in (0.0, 1.0):
        raise RecGuideError(
            f"{where}: {'every' if share else 'no'} draft was accepted, so there is nothing to tell apart; "
            "record with another policy, or check the drafter"
        )


def _drafts(trace: Trace, number: int) -> dict[str, np.ndarray]:
    """One row for each draft that was held in a verification."""
    before = _histories(trace.tables["plans"])
    rows = trace.tables["draft_positions"].sort_by(
        [("request", "ascending"), ("step", "ascending"), ("position", "ascending")]
    )
    column = {name: rows[name].to_numpy(zero_copy_only=False) for name in rows.column_names}
    inside = column["position"] <= MOST
    column = {name: values[inside] for name, values in column.items()}
    new = np.ones(len(column["step"]), bool)
    new[1:] = (column["step"][1:] != column["step"][:-1]) | (column["request"][1:] != column["request"][:-1])
    draft, place = np.cumsum(new) - 1, column["position"].astype(np.int64) - 1
    first = np.flatnonzero(new)
    count = len(first)

    def grid(values: np.ndarray, empty: float | bool) -> np.ndarray:
        out = np.full((count, MOST), empty)
        out[draft, place] = values
        return out

    keys = list(zip(column["request"][first].tolist(), column["step"][first].tolist(), strict=True))
    known = [before.get(key, ((), -1)) for key in keys]
    return {
        "top1": grid(column["top1"].astype(np.float64), np.nan),
        "margin": grid(column["margin"].astype(np.float64), np.nan),
        "entropy": grid(column["entropy"].astype(np.float64), np.nan),
        "length": np.bincount(draft, minlength=count),
        "kind": np.array([KINDS.index(kind) for kind in column["kind"][first]], np.int64),
        "group": column["request"][first] + number * 10**9,
        "histories": np.array([history(rounds) for rounds, _ in known]).reshape(-1, len(HISTORY)),
        "reached": grid(column["reached"], False),
        "accepted": grid(column["accepted"] & column["reached"], False),
        "second_right": grid(column["reached"] & (column["second"] == column["correct"]), False),
        "previous": np.array([full for _, full in known], np.int64),
    }


def _histories(plans: pa.Table) -> dict[tuple[int, int], tuple[tuple[tuple[int, int], ...], int]]:
    """Per (request, step): the verifications of the request before that step, and the block before (-1: none)."""
    return {
        (row["request"], row["step"]): (tuple(past[-MOST:]), past[-1][0] if past else -1)
        for row, past in with_verifications(plans)
        if row["verify"] > 0
    }
