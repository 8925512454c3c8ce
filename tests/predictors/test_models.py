"""Candidates, their choice and calibration: grouped folds, honest calibration, and input that cannot be right."""

import numpy as np
import pytest
from recguide.predictors.metrics import calibration_error
from recguide.predictors.models import CalibratedChoice, Rows
from sklearn.base import clone

from recguide.control.scoring import sigmoid
from recguide.errors import RecGuideError


def data(rows=3000, seed=0, interaction=0.0):
    chooser = np.random.default_rng(seed)
    x = chooser.normal(0, 1, (rows, 4)).astype(np.float32)
    y = chooser.random(rows) < sigmoid(1.5 * x[:, 0] + interaction * x[:, 1] * np.sign(x[:, 2]))
    return x, y, np.arange(rows) // 15


def test_the_simpler_model_is_kept_unless_the_other_is_better():
    assert CalibratedChoice().fit(*data()).name_ == "logistic"
    assert CalibratedChoice().fit(*data(interaction=3.0)).name_ == "trees"


@pytest.mark.parametrize("only", ["logistic", "trees"])
def test_probabilities_are_calibrated_on_new_requests(only):
    fitted = CalibratedChoice(only=only).fit(*data(15000))
    x, y, _ = data(15000, seed=1)
    assert fitted.name_ == only
    assert calibration_error(fitted.predict_proba(x)[:, 1], y) < 0.03
    assert calibration_error(fitted.left_out_, data(15000)[1]) < 0.03


def test_what_is_left_out_is_left_out():
    """Outcomes that belong to requests alone cannot be foretold from features that name the request."""
    chooser = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 300)
    x = np.column_stack([groups, chooser.normal(0, 1, len(groups))]).astype(np.float32)
    y = (np.arange(10) % 3 == 0)[groups]
    fitted = CalibratedChoice(only="trees").fit(x, y, groups)
    seen = (fitted.estimator_.predict(x) == y).mean()
    unseen = ((fitted.left_out_ > 0.5) == y).mean()
    assert seen > 0.9 and unseen < seen - 0.2


def test_scikit_learn_conventions():
    model = CalibratedChoice(seed=3, only="trees", calibrate=False)
    assert clone(model).get_params() == {"seed": 3, "only": "trees", "calibrate": False}
    assert not [name for name in vars(model) if name.endswith("_")]
    assert model.fit(*data(400)) is model
    assert model.predict_proba(data(50)[0]).sum(1) == pytest.approx(1)


def test_features_must_be_float32_and_finite_and_outcomes_of_two_kinds():
    x, y, groups = data(200)
    with pytest.raises(TypeError, match="float32"):
        CalibratedChoice().fit(x.astype(np.float64), y, groups)
    with pytest.raises(RecGuideError, match="NaN"):
        CalibratedChoice().fit(np.where(x > 2, np.float32("nan"), x), y, groups)
    with pytest.raises(RecGuideError, match="all 200 outcomes are True"):
        CalibratedChoice().fit(x, np.ones(200, bool), groups)


def test_rows_are_the_chosen_places_in_order():
    features = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    chosen = np.array([[True, True, False], [True, False, False]])
    rows = Rows.of(features, chosen, chosen, np.array([7, 9]))
    assert rows.groups.tolist() == [7, 7, 9] and rows.position.tolist() == [1, 2, 1]
    assert rows.x[:, 0].tolist() == [0, 4, 12]
