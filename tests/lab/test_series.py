"""From numbers of steps to curves: against plain arithmetic."""

import numpy as np
import pytest
from recguide.lab import series
from recguide.lab.ring import Ring
from sklearn.metrics import roc_auc_score


def steps(ends, took, requests, committed):
    columns = {"at": ends, "seconds": took, "requests": requests, "committed": committed}
    return {name: np.broadcast_to(np.array(values, float), len(ends)).copy() for name, values in columns.items()}


def test_a_steady_engine_has_a_flat_throughput():
    ends = 1000 + np.arange(1, 3001) * 0.05
    aggregate, each = series.throughput(steps(ends, 0.05, 4, 6), float(ends[-1]))
    assert aggregate.dtype == each.dtype == np.float32
    assert aggregate[-100:] == pytest.approx(np.full(100, 6 / 0.05), rel=1e-3)
    assert each[-100:] == pytest.approx(np.full(100, 6 / 0.05 / 4), rel=1e-3)


def test_a_pause_is_zero_and_the_time_before_is_unknown():
    ends = np.concatenate((1000 + np.arange(1, 101) * 0.1, 1060 + np.arange(1, 101) * 0.1))
    aggregate, each = series.throughput(steps(ends, 0.1, 2, 3), float(ends[-1]))
    ago = series.AGO
    assert aggregate[(ago > -55) & (ago < -15)] == pytest.approx(0)
    assert np.isnan(each[(ago > -55) & (ago < -15)]).all()
    assert aggregate[-10:] == pytest.approx(np.full(10, 30.0), rel=1e-3)
    assert np.isnan(aggregate[ago < -75]).all()


def test_no_step_yet_draws_nothing():
    aggregate, each = series.throughput(steps([], [], [], []), 5.0)
    assert np.isnan(aggregate).all()
    assert np.isnan(each).all()
    assert np.isnan(series.achieved(steps([], [], [], []))).all()


def test_recent_fills_up_in_front():
    shown = series.recent(np.arange(3.0), 2.0, fill=-1)
    assert shown[-3:].tolist() == [0, 2, 4]
    assert set(shown[:-3]) == {-1}
    assert series.recent(np.arange(500.0))[0] == 500 - series.STEPS


def test_achieved_is_tokens_over_time():
    assert series.achieved(steps(np.arange(200.0), 0.05, 1, 4))[-1] == pytest.approx(4 / 50)


@pytest.mark.parametrize("seed", range(4))
def test_auc_is_scikit_learns(seed):
    draw = np.random.default_rng(seed)
    chance = draw.random(300).round(1)  # with ties
    came = draw.random(300) < chance
    pairs = [(float(p), bool(c)) for p, c in zip(chance, came, strict=True)]
    assert series.auc(pairs) == pytest.approx(roc_auc_score(came, chance))


def test_reliability_of_an_honest_and_of_a_boastful_predictor():
    draw = np.random.default_rng(0)
    chance = draw.random(20_000)
    honest = [(float(p), bool(c)) for p, c in zip(chance, draw.random(20_000) < chance, strict=True)]
    boastful = [(min(1.0, p + 0.2), c) for p, c in honest]
    mean, share, count = series.reliability(honest)
    assert share == pytest.approx(mean, abs=0.04)
    assert count.sum() == 20_000
    assert series.ece(honest) < 0.02
    assert series.ece(boastful) == pytest.approx(0.18, abs=0.03)


def test_nothing_to_judge_by_is_none():
    assert series.auc([]) is series.ece([]) is None
    assert series.auc([(0.5, True)]) is None


def test_mix_and_hit_rates():
    assert series.mix([0, 0, 1, 7, 40], (0, 1, 4, 8)).tolist() == [40, 20, 20, 20]
    rates = series.hit_rates([("a", True), ("a", False), ("b", True)], ("a", "b", "c"))
    assert rates[:2].tolist() == [50, 100]
    assert np.isnan(rates[2])


def test_a_ring_keeps_the_newest():
    ring = Ring(("a", "b"), 5)
    for i in range(12):
        ring.add(i, -i)
    assert (len(ring), ring.count) == (5, 12)
    assert ring.last()["a"].tolist() == [7, 8, 9, 10, 11]
    assert ring.last(2)["b"].tolist() == [-10, -11]


@pytest.mark.parametrize("skipped", [3, 4, 40])
def test_skipped_rows_read_as_nothing(skipped):
    ring = Ring(("a",), 5)
    for i in range(3):
        ring.add(i)
    ring.skip(skipped)
    ring.add(9)
    assert ring.count == skipped + 1
    values = ring.last()["a"]
    assert values[-1] == 9
    assert np.isnan(values).sum() == min(skipped - 3, 4)
