"""From fitted scikit-learn models to the arrays of a controller file. The numbers stay the same to 1e-6."""

from __future__ import annotations

import numpy as np
from recguide.predictors.models import CalibratedChoice
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline

from recguide.control.scoring import Logistic, Scorer, Trees


def to_scorer(fitted: CalibratedChoice) -> Scorer:
    """The chosen model and its calibration."""
    estimator = fitted.estimator_
    model = _trees(estimator) if isinstance(estimator, HistGradientBoostingClassifier) else _logistic(estimator)
    return Scorer(model, fitted.knots_)


def _logistic(pipeline: Pipeline) -> Logistic:
    """Weights on the features as they are: (x - mean) / scale is folded into them."""
    scaler, regression = pipeline[-2], pipeline[-1]
    weights = regression.coef_[0] / scaler.scale_
    return Logistic(weights, np.float64(regression.intercept_[0] - weights @ scaler.mean_))


def _trees(boosted: HistGradientBoostingClassifier) -> Trees:
    trees = [iteration[0].nodes for iteration in boosted._predictors]  # the learned trees have no public name
    shape = len(trees), max(map(len, trees))
    feature, left, right = (np.zeros(shape, np.int32) for _ in range(3))
    threshold, value = np.zeros(shape), np.zeros(shape)
    for number, nodes in enumerate(trees):
        own, leaf = np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
        feature[number, own] = np.where(leaf, 0, nodes["feature_idx"])
        threshold[number, own] = np.where(leaf, 0.0, nodes["num_threshold"])
        left[number, own] = np.where(leaf, own, nodes["left"])
        right[number, own] = np.where(leaf, own, nodes["right"])
        value[number, own] = nodes["value"]
    depth = max(int(nodes["depth"].max()) for nodes in trees)
    baseline = np.float64(np.ravel(boosted._baseline_prediction)[0])
    return Trees(feature, threshold, left, right, value, baseline, np.int64(depth))
