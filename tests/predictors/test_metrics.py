"""Figures by hand: calibration error, reliability, denominators of positions, value curves."""

import numpy as np
import pytest
from recguide.predictors.metrics import by_position, calibration_error, reliability, scores, value_curves


def test_calibration_error_by_hand():
    predicted = np.array([0.1, 0.1, 0.9, 0.9])
    outcome = np.array([False, True, True, True])
    assert calibration_error(predicted, outcome, bins=2) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    curve = reliability(predicted, outcome, bins=2)
    assert [(b["observed"], b["count"]) for b in curve] == [(0.5, 2), (1.0, 2)]


def test_perfect_and_useless_predictions():
    outcome = np.array([False, True] * 50)
    assert scores(outcome.astype(float), outcome)["auc"] == 1.0
    assert scores(np.full(100, 0.5), outcome)["auc"] == 0.5
    assert scores(np.full(100, 0.5), outcome)["brier"] == pytest.approx(0.25)
    assert scores(np.full(4, 0.9), np.ones(4, bool))["auc"] is None


def test_positions_count_what_was_reached():
    places = by_position(np.array([0.5] * 5), np.array([True, True, False, True, False]), np.array([1, 1, 1, 2, 2]))
    assert {place: (s["rows"], s["share"]) for place, s in places.items()} == {
        1: (3, pytest.approx(2 / 3)),
        2: (2, 0.5),
    }


def test_value_curves_are_survival_sums():
    reached = np.array([[True, True], [True, False], [True, True], [True, True]])
    accepted = np.array([[True, True], [False, False], [True, False], [True, True]])
    conditional = np.full((4, 2), 0.5)
    curve = value_curves(conditional, reached, accepted)
    assert [c["block"] for c in curve] == [2, 3]
    assert curve[0] == {"block": 2, "predicted": 1.5, "observed": pytest.approx(1.75)}
    assert curve[1]["observed"] == pytest.approx(1.75 + 0.75 * 2 / 3) and curve[1]["predicted"] == 1.75
