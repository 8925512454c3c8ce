"""The monitor: offsets find a wrong model, the alarm finds a dead drafter and no other, and quality is what it says."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

from recguide.control.features import GROUPS
from recguide.control.monitor import Monitor, auc

OPEN = GROUPS.index("open")
USUAL = np.full((len(GROUPS), 8), 0.5)


def play(monitor, rounds, chance, given=4, predicted=0.5, seed=0, adapt=True):
    """Verifications of drafts that are right with ``chance`` each; returns the round of the alarm, if any."""
    chooser = np.random.default_rng(seed)
    alarm = None
    for number in range(1, rounds + 1):
        right = chooser.random(given) < chance
        accepted = int(right.argmin()) if not right.all() else given
        offset = monitor.offset(np.array([OPEN]), given)[0]
        odds = np.log(predicted / (1 - predicted)) + offset
        monitor.learn(OPEN, (1 / (1 + np.exp(-odds))).tolist(), accepted, given, adapt=adapt)
        if monitor.drift and alarm is None:
            alarm = number
    return alarm


@pytest.mark.parametrize("seed", range(10))
def test_a_dead_drafter_is_flagged_within_50_rounds(seed):
    assert play(Monitor(USUAL), 50, 0.03, seed=seed) is not None


@pytest.mark.parametrize("chance", [0.4, 0.5, 0.6, 0.9])
def test_a_living_one_is_not(chance):
    assert all(play(Monitor(USUAL), 300, chance, seed=seed) is None for seed in range(5))


def test_the_alarm_ends_when_drafts_are_accepted_again():
    monitor = Monitor(USUAL)
    play(monitor, 60, 0.02)
    assert "adapter" in monitor.drift
    play(monitor, 60, 0.05)
    assert monitor.drift is not None
    play(monitor, 60, 0.55)
    assert monitor.drift is None
    monitor = Monitor(USUAL)
    play(monitor, 60, 0.02)
    play(monitor, 20, 0.6)  # what is seen behind the alarm counts alone
    assert monitor.drift is None


def test_offsets_make_a_wrong_forecast_right():
    monitor = Monitor(USUAL)
    play(monitor, 1500, 0.7, predicted=0.4)
    corrected = np.log(0.4 / 0.6) + monitor.offsets[OPEN, 0]
    assert 1 / (1 + np.exp(-corrected)) == pytest.approx(0.7, abs=0.06)
    assert not monitor.offsets[1:].any()  # drafts of other kinds were never seen


def test_without_adapting_nothing_moves_but_all_is_watched():
    monitor = Monitor(USUAL)
    play(monitor, 200, 0.9, adapt=False)
    assert not monitor.offsets.any() and monitor.observed > 200 and monitor.quality()["positions"] == monitor.observed


def test_only_reached_positions_count():
    monitor = Monitor(USUAL)
    monitor.learn(OPEN, [0.9, 0.8, 0.7, 0.6], 1, 4)
    assert monitor.observed == 2  # one accepted, one rejected, two never seen
    monitor.learn(OPEN, [0.9, 0.8, 0.7, 0.6], 4, 4)
    assert monitor.observed == 6


def test_quality_is_what_scikit_learn_says():
    monitor, chooser = Monitor(USUAL), np.random.default_rng(0)
    pairs = []
    for _ in range(400):
        p = round(chooser.random(), 1)
        right = bool(chooser.random() < p)
        pairs.append((p, right))
        monitor.learn(OPEN, [p], int(right), 1, adapt=False)
    predicted, outcome = map(np.array, zip(*pairs, strict=True))
    quality = monitor.quality()
    assert quality["auc"] == pytest.approx(roc_auc_score(outcome, predicted))
    assert quality["brier"] == pytest.approx(brier_score_loss(outcome, predicted))
    assert 0 <= quality["ece"] < 0.08 and sum(n for _, _, n in quality["reliability"]) == 400


def test_the_ece_by_chance_is_that_of_right_predictions():
    chooser, found = np.random.default_rng(1), []
    for _ in range(60):
        monitor = Monitor(USUAL)
        for p in chooser.uniform(0.1, 0.9, 300):
            monitor.learn(OPEN, [p], int(chooser.random() < p), 1, adapt=False)
        found.append([monitor.quality()[name] for name in ("ece", "ece_by_chance")])
    ece, by_chance = np.mean(found, 0)
    assert ece == pytest.approx(by_chance, rel=0.1) and by_chance > 0.04


def test_figures_of_nothing_and_of_one_outcome():
    assert Monitor(USUAL).quality() == {"positions": 0}
    assert auc(np.array([0.2, 0.8]), np.array([True, True])) is None
