"""What the learned models must beat: simple predictions of P(draft accepted | reached), fitted on the same rows.

The paper's table (PAPER, 'Higher load') sees the state before a draft is made; the others see its logits.
"""

from __future__ import annotations

import numpy as np
from recguide.predictors.models import FOLDS, Rows
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from recguide.control.features import HISTORY, MISMATCH

COLUMN = {feature.name: place for place, feature in enumerate(MISMATCH)}
EDGES = 4  # quantile cells of a table


def left_out(rows: Rows, previous: np.ndarray, entropy: np.ndarray) -> dict[str, np.ndarray]:
    """Predictions [rows] of each baseline, of requests that it was not fitted on.

    ``previous`` [rows] is the block before, ``entropy`` [rows] the mean draft entropy of the block (both of the row's
    draft).
    """
    made = {name: np.empty(len(rows.y)) for name in ("constant", "top1", "margin", "ewma", "table")}
    folds = min(FOLDS, len(np.unique(rows.groups)))
    for train, test in GroupKFold(folds).split(rows.x, rows.y, rows.groups):
        made["constant"][test] = _table([rows.position], rows.y, train, test)
        odds = rows.x[:, COLUMN["top1"]]
        made["top1"][test] = 1 / (1 + np.exp(-odds[test]))  # the probability itself
        made["margin"][test] = _logistic(rows.x[:, [COLUMN["margin"]]], rows.y, train, test)
        made["ewma"][test] = _logistic(rows.x[:, [COLUMN[HISTORY[0].name]]], rows.y, train, test)
        full = rows.x[:, COLUMN["last_full"]]
        cells = [_cells(entropy, train), previous, full, np.minimum(rows.position, 4)]
        made["table"][test] = _table(cells, rows.y, train, test)
    return made


def _logistic(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    if len(np.unique(y[train])) < 2:
        return np.full(len(test), y[train].mean())
    return LogisticRegression().fit(x[train], y[train]).predict_proba(x[test])[:, 1]


def _cells(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Quantile bins, with edges of the training rows."""
    edges = np.quantile(np.nan_to_num(values[train]), np.linspace(0, 1, EDGES + 1)[1:-1])
    return np.digitize(np.nan_to_num(values), edges)


def _table(keys: list[np.ndarray], y: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Mean outcome of the training rows with the same keys, shrunk towards the mean of all."""
    mean, weight = y[train].mean(), 10.0
    _, cell = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    cell = cell.ravel()
    count = np.bincount(cell[train], minlength=cell.max() + 1)
    total = np.bincount(cell[train], y[train], minlength=cell.max() + 1)
    return ((total + weight * mean) / (count + weight))[cell[test]]
