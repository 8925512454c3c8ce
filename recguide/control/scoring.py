"""Evaluates what scikit-learn fitted, without scikit-learn: logistic regression, boosted trees, and their calibration.

A model is a set of arrays, as they stand in a controller file. Inputs are float32 features; thresholds stay float64, so
that no row takes another way through a tree than it took in training.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np

from recguide.errors import RecGuideError

FEW = 24  # rows that are scored sooner in plain numbers than as an array


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * scores))


@dataclass(frozen=True)
class Logistic:
    """``weights`` [features] and ``intercept``; the scaling of the features is folded in."""

    kind: ClassVar[str] = "logistic"
    weights: np.ndarray
    intercept: np.ndarray

    def scores(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64) @ self.weights + self.intercept

    @cached_property
    def plain(self) -> tuple[list[float], float]:
        """Weights and intercept in plain numbers."""
        return self.weights.tolist(), float(self.intercept)


@dataclass(frozen=True)
class Trees:
    """Boosted trees as arrays [trees, nodes]; a leaf points to itself, so that every row walks ``depth`` levels."""

    kind: ClassVar[str] = "trees"
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    baseline: np.ndarray
    depth: np.ndarray

    def __post_init__(self) -> None:
        shape = self.value.shape
        wrong = [n for n in ("feature", "threshold", "left", "right") if getattr(self, n).shape != shape]
        if wrong or len(shape) != 2:
            raise RecGuideError(f"trees: {wrong[0] if wrong else 'value'} does not have the shape [trees, nodes]")
        if min(self.left.min(), self.right.min()) < 0 or max(self.left.max(), self.right.max()) >= shape[1]:
            raise RecGuideError("trees: a node points outside its tree")

    def scores(self, x: np.ndarray) -> np.ndarray:
        rows = np.arange(len(x))[:, None]
        trees = np.arange(len(self.value))
        node = np.zeros((len(x), len(trees)), np.int64)
        for _ in range(int(self.depth)):
            goes_left = x[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        return self.value[trees, node].sum(1) + self.baseline


SHAPES: dict[str, type[Logistic] | type[Trees]] = {model.kind: model for model in (Logistic, Trees)}


@dataclass(frozen=True)
class Scorer:
    """Features [rows, features] to calibrated probabilities [rows]. ``knots`` [2, n] map raw to calibrated ones."""

    model: Logistic | Trees
    knots: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.interp(sigmoid(self.model.scores(x)), self.knots[0], self.knots[1])

    def few(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """The same of rows in plain numbers. For a handful an array operation costs its call and not its arithmetic,
        and all the more where a forward has emptied the caches since the last one."""
        if len(rows) > FEW or not isinstance(self.model, Logistic):
            return self(np.array(rows, np.float32)).tolist()
        weights, intercept = self.model.plain
        raw, calibrated = self._plain_knots
        probabilities = []
        for row in rows:
            x = 0.5 + 0.5 * math.tanh(0.5 * (sum(map(operator.mul, row, weights)) + intercept))
            x = min(max(x, raw[0]), raw[-1])
            at = min(bisect_right(raw, x), len(raw) - 1)
            low, high = calibrated[at - 1], calibrated[at]
            probabilities.append(low + (high - low) * (x - raw[at - 1]) / (raw[at] - raw[at - 1]))
        return probabilities

    @cached_property
    def _plain_knots(self) -> list[list[float]]:
        return self.knots.tolist()

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it, by the names of ``from_arrays``."""
        values = {f"{self.model.kind}.{f.name}": getattr(self.model, f.name) for f in fields(self.model)}
        return values | {"knots": self.knots}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Scorer:
        """The inverse of ``arrays``. RecGuideError when one is missing, of the wrong shape, or not finite."""
        kinds = {name.partition(".")[0] for name in arrays if "." in name}
        if len(kinds) != 1 or not kinds <= set(SHAPES):
            raise RecGuideError(f"model of kinds {sorted(kinds)}; expected one of {', '.join(SHAPES)}")
        bad = [name for name, value in arrays.items() if not np.isfinite(value).all()]
        if bad:
            raise RecGuideError(f"model array {bad[0]} is not finite")
        values = {name.partition(".")[2]: value for name, value in arrays.items() if "." in name}
        try:
            return cls(SHAPES[kinds.pop()](**values), arrays["knots"])
        except (TypeError, KeyError) as fault:
            raise RecGuideError(f"model arrays are not complete ({fault})") from None
