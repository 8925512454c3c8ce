"""Candidates for every prediction, chosen by cross-validation over requests and calibrated on what was left out.

Logistic regression and histogram gradient boosting are compared by log loss; the simpler one is kept unless the other
is better by more than a standard error over the folds. Rows of one request never stand on both sides of a split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted

from recguide.errors import RecGuideError

FOLDS = 5
KNOTS = 24
CLIP = 1e-3


def candidates(seed: int = 0) -> dict[str, BaseEstimator]:
    """Unfitted estimators, simplest first. The regression computes in float64, as it will at decision time."""
    return {
        "logistic": make_pipeline(FunctionTransformer(np.float64), StandardScaler(), LogisticRegression(max_iter=1000)),
        "trees": HistGradientBoostingClassifier(
            max_iter=40, max_depth=4, learning_rate=0.15, min_samples_leaf=40, l2_regularization=1.0,
            early_stopping=False, random_state=seed,
        ),
    }  # fmt: skip


class CalibratedChoice(ClassifierMixin, BaseEstimator):
    """Fits the better of ``candidates`` and calibrates it.

    Learned: ``name_`` and ``estimator_`` of the chosen candidate, ``knots_`` [2, n] of its calibration,
    ``losses_`` (mean log loss by candidate), ``left_out_`` (calibrated predictions [rows] by folds without them).
    """

    def __init__(self, seed: int = 0, only: str | None = None, calibrate: bool = True):
        self.seed = seed
        self.only = only
        self.calibrate = calibrate

    def fit(self, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> CalibratedChoice:
        """``x`` float32 [rows, features], ``y`` bool [rows], ``groups`` [rows]: the request of each row."""
        _check(x, y)
        self.classes_ = np.array([False, True])
        pool = {n: c for n, c in candidates(self.seed).items() if self.only in (None, n)}
        splits = list(GroupKFold(min(FOLDS, len(np.unique(groups)))).split(x, y, groups))
        raw = {name: _left_out(estimator, x, y, splits) for name, estimator in pool.items()}
        losses = {n: [log_loss(y[test], p[test], labels=[False, True]) for _, test in splits] for n, p in raw.items()}
        self.losses_ = {name: float(np.mean(each)) for name, each in losses.items()}
        self.name_ = _simplest_good(losses)
        self.estimator_ = clone(pool[self.name_]).fit(x, y)
        chosen = raw[self.name_]
        self.knots_ = _knots(chosen, y) if self.calibrate else np.array([[0.0, 1.0], [0.0, 1.0]])
        self.left_out_ = _recalibrated(chosen, y, splits) if self.calibrate else chosen
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """[rows, 2]: probabilities of no and yes."""
        check_is_fitted(self, "estimator_")
        yes = np.interp(self.estimator_.predict_proba(x)[:, 1], *self.knots_)
        return np.column_stack((1 - yes, yes))

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.predict_proba(x)[:, 1] > 0.5


def _check(x: np.ndarray, y: np.ndarray) -> None:
    if x.dtype != np.float32:
        raise TypeError(f"features are {x.dtype}; cast them to float32 before training, as they are at decision time")
    if not np.isfinite(x).all():
        raise RecGuideError("features hold NaN or infinity; leave those rows out")
    if len(np.unique(y)) < 2:
        raise RecGuideError(f"all {len(y)} outcomes are {bool(y[0]) if len(y) else 'missing'}: nothing to tell apart")


def _left_out(estimator: BaseEstimator, x, y, splits) -> np.ndarray:
    """Predictions of every row by a model that did not see its request."""
    out = np.empty(len(x))
    for train, test in splits:
        if len(np.unique(y[train])) < 2:
            out[test] = y[train].mean()
        else:
            out[test] = clone(estimator).fit(x[train], y[train]).predict_proba(x[test])[:, 1]
    return out


def _simplest_good(losses: dict[str, list[float]]) -> str:
    """The best candidate, or a simpler one that is not worse by more than a standard error of the difference."""
    best = min(losses, key=lambda name: np.mean(losses[name]))
    for name, each in losses.items():
        difference = np.array(each) - np.array(losses[best])
        if difference.mean() <= difference.std(ddof=1) / len(difference) ** 0.5:
            return name
    return best


def _recalibrated(raw: np.ndarray, y: np.ndarray, splits) -> np.ndarray:
    """Calibrated predictions whose calibration did not see the row's request either."""
    out = np.empty(len(raw))
    for train, test in splits:
        out[test] = np.interp(raw[test], *_knots(raw[train], y[train]))
    return out


def _knots(raw: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Isotonic calibration, read off at quantiles: few knots, strictly rising inputs, never quite 0 or 1."""
    isotonic = IsotonicRegression(out_of_bounds="clip").fit(raw, y)
    edges = np.unique(np.quantile(raw, np.linspace(0, 1, KNOTS + 1)))
    if len(edges) < 2:
        return np.array([[0.0, 1.0], [y.mean(), y.mean()]])
    middles = (edges[:-1] + edges[1:]) / 2
    sides = np.clip(np.searchsorted(edges, raw, "right") - 1, 0, len(middles) - 1)
    counts = np.bincount(sides, minlength=len(middles))
    fitted = np.bincount(sides, isotonic.predict(raw), minlength=len(middles))
    level = np.clip(fitted[counts > 0] / counts[counts > 0], CLIP, 1 - CLIP)
    inputs = np.concatenate(([0.0], middles[counts > 0], [1.0]))
    return np.array([inputs, np.concatenate((level[:1], level, level[-1:]))])


@dataclass(frozen=True)
class Rows:
    """What one prediction learns from: float32 features [rows, n], outcomes, requests, and places in the draft."""

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    position: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, outcome: np.ndarray, chosen: np.ndarray, group: np.ndarray) -> Rows:
        """Rows where ``chosen`` bool [drafts, K], from features [drafts, K, n] and outcomes [drafts, K]."""
        draft, place = np.nonzero(chosen)
        return cls(features[chosen], outcome[chosen], group[draft], place + 1)
