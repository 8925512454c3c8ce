"""Scoring without scikit-learn gives what scikit-learn gives, and refuses arrays that cannot be right."""

import numpy as np
import pytest
from recguide.predictors.export import to_scorer
from recguide.predictors.models import CalibratedChoice
from sklearn.ensemble import HistGradientBoostingClassifier

from recguide.control.scoring import FEW, Logistic, Scorer, Trees, sigmoid
from recguide.errors import RecGuideError


def data(rows=1200, columns=5, seed=0):
    chooser = np.random.default_rng(seed)
    x = chooser.normal(0, 1, (rows, columns)).astype(np.float32)
    x[:, 1] = x[:, 1].round()  # values that fall on bin edges
    y = chooser.random(rows) < sigmoid(x[:, 0] * 2 - (x[:, 1] > 0) * x[:, 2])
    return x, y, np.arange(rows) // 20


@pytest.mark.parametrize("only", ["logistic", "trees"])
@pytest.mark.parametrize("calibrate", [True, False])
def test_equal_to_scikit_learn(only, calibrate):
    x, y, groups = data()
    fitted = CalibratedChoice(only=only, calibrate=calibrate).fit(x, y, groups)
    made = to_scorer(fitted)
    fresh = data(seed=1)[0]
    for rows in (x, fresh, fresh[:1]):
        assert np.abs(made(rows) - fitted.predict_proba(rows)[:, 1]).max() < 1e-9


@pytest.mark.parametrize("only", ["logistic", "trees"])
def test_few_rows_in_plain_numbers_are_scored_as_arrays_are(only):
    x, y, groups = data()
    made = to_scorer(CalibratedChoice(only=only).fit(x, y, groups))
    for rows in (x[:1], x[1 : FEW + 1], x[: FEW + 1], 50 * x[:9], -50 * x[:9]):
        assert made.few(rows.tolist()) == pytest.approx(made(rows).tolist(), abs=1e-12)


def test_few_rows_beyond_the_knots_get_the_ends():
    """A file may hold knots that do not span 0 to 1."""
    made = Scorer(Logistic(np.ones(1), np.float64(0)), np.array([[0.4, 0.5, 0.6], [0.1, 0.3, 0.7]]))
    rows = [[-9.0], [-0.2], [0.0], [0.3], [9.0], [900.0]]
    assert made.few(rows) == pytest.approx(made(np.array(rows, np.float32)).tolist(), abs=1e-6)


def test_trees_of_unequal_depth_walk_to_their_leaves():
    x, y, _ = data(400)
    boosted = HistGradientBoostingClassifier(max_iter=6, max_leaf_nodes=9, min_samples_leaf=5).fit(x, y)
    fitted = CalibratedChoice()
    fitted.estimator_, fitted.knots_ = boosted, np.array([[0.0, 1.0], [0.0, 1.0]])
    made = to_scorer(fitted)
    assert len({int(n.nodes["depth"].max()) for (n,) in boosted._predictors}) > 1
    assert np.abs(made(x) - boosted.predict_proba(x)[:, 1]).max() < 1e-9


def test_arrays_there_and_back():
    x, y, groups = data()
    for only in ("logistic", "trees"):
        made = to_scorer(CalibratedChoice(only=only).fit(x, y, groups))
        again = Scorer.from_arrays({name: np.asarray(value) for name, value in made.arrays().items()})
        assert np.array_equal(again(x), made(x))


def test_wrong_arrays_are_refused():
    good = Scorer(Logistic(np.ones(3), np.float64(0)), np.array([[0.0, 1.0], [0.0, 1.0]])).arrays()
    with pytest.raises(RecGuideError, match="not finite"):
        Scorer.from_arrays(good | {"logistic.weights": np.array([1.0, np.nan, 0.0])})
    with pytest.raises(RecGuideError, match="not complete"):
        Scorer.from_arrays({name: v for name, v in good.items() if name != "knots"})
    with pytest.raises(RecGuideError, match="expected one of logistic, trees"):
        Scorer.from_arrays({"forest.weights": np.ones(3), "knots": good["knots"]})
    square = np.zeros((2, 3), np.int32)
    with pytest.raises(RecGuideError, match="points outside"):
        Trees(square, square * 1.0, square + 3, square, square * 1.0, np.float64(0), np.int64(1))
    with pytest.raises(RecGuideError, match="shape"):
        Trees(square[:1], square * 1.0, square, square, square * 1.0, np.float64(0), np.int64(1))


def test_sigmoid_far_out():
    assert sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]
