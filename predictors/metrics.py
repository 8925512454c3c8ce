"""How good probabilities are: AUC, log loss, Brier, calibration error, reliability curves. No model is known here."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

BINS = 10


def reliability(predicted: np.ndarray, outcome: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """Mean prediction, observed share and count in bins of equal count."""
    order = np.argsort(predicted, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return [
        {"predicted": float(predicted[p].mean()), "observed": float(outcome[p].mean()), "count": len(p)} for p in parts
    ]


def calibration_error(predicted: np.ndarray, outcome: np.ndarray, bins: int = BINS) -> float:
    """ECE: mean distance between predicted and observed over bins of equal count."""
    curve = reliability(predicted, outcome, bins)
    return sum(abs(b["predicted"] - b["observed"]) * b["count"] for b in curve) / len(predicted)


def scores(predicted: np.ndarray, outcome: np.ndarray) -> dict[str, Any]:
    """AUC (None where only one outcome occurs), log loss, Brier, ECE and the number of rows."""
    both = len(np.unique(outcome)) == 2
    safe = np.clip(predicted, 1e-6, 1 - 1e-6)
    return {
        "rows": len(outcome),
        "share": float(np.mean(outcome)),
        "auc": float(roc_auc_score(outcome, predicted)) if both else None,
        "log_loss": float(log_loss(outcome, safe, labels=[False, True])),
        "brier": float(brier_score_loss(outcome, safe, pos_label=True))
        if both
        else float(np.mean((safe - outcome) ** 2)),
        "ece": calibration_error(predicted, outcome),
    }


def by_position(predicted: np.ndarray, outcome: np.ndarray, position: np.ndarray) -> dict[int, dict[str, Any]]:
    """``scores`` for each place in the draft; denominators are reached positions."""
    places = np.unique(position).tolist()
    return {place: scores(predicted[position == place], outcome[position == place]) for place in places}


def value_curves(conditional: np.ndarray, reached: np.ndarray, accepted: np.ndarray) -> list[dict[str, float]]:
    """V_L = 1 + S_1 + ... + S_{L-1} by block size L: predicted (mean over drafts) and observed.

    ``conditional`` [drafts, K] are predicted P(accepted | reached). Observed survivals are products of the observed
    conditionals (Kaplan-Meier), so that drafts that were verified only in part count as far as they were seen.
    """
    curve, predicted, observed, survival = [], 1.0, 1.0, 1.0
    alive = np.cumprod(conditional, 1).mean(0)
    for j in range(conditional.shape[1]):
        if not reached[:, j].any():
            break
        survival *= accepted[:, j].sum() / reached[:, j].sum()
        predicted += alive[j]
        observed += survival
        curve.append({"block": j + 2, "predicted": float(predicted), "observed": float(observed)})
    return curve
