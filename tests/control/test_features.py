"""Features: their definitions one by one, and that what is not there leaves no trace."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.features import (
    DECAY,
    HISTORY,
    KINDS,
    MISMATCH,
    UTILITY,
    block_features,
    draft_features,
    history,
)

NAMES = [feature.name for feature in MISMATCH]
probabilities = st.floats(0.01, 0.99)


def column(rows, name):
    return rows[..., NAMES.index(name)]


def one(top1, margin, kind="continuation", past=()):
    return np.array(draft_features(top1, margin, KINDS.index(kind), history(past)), np.float32)


@given(st.lists(st.tuples(probabilities, probabilities), min_size=1, max_size=8), st.sampled_from(KINDS))
def test_every_draft_feature_by_its_definition(pairs, kind):
    top1, margin = map(list, zip(*pairs, strict=True))
    rows = one(top1, margin, kind)
    assert rows.shape == (len(pairs), len(MISMATCH))
    odds = [math.log(p / (1 - p)) for p in top1]
    opened = kind in ("open", "continuation", "tail")
    for j in range(len(pairs)):
        expected = {
            "position": j + 1,
            "first_open": float(j == 0 and opened),
            "first_known": float(j == 0 and not opened),
            "top1": odds[j],
            "margin": margin[j],
            "least_top1": min(odds[: j + 1]),
            "product": sum(math.log(p) for p in top1[: j + 1]),
            "before": odds[j - 1] if j else 0.0,
            **{f"kind_{k}": float(k == kind) for k in KINDS[1:]},
        }
        for name, value in expected.items():
            assert column(rows, name)[j] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_a_place_sees_nothing_of_the_places_behind_it():
    a = one([0.9, 0.4, 0.3], [0.8, 0.1, 0.1])
    b = one([0.9, 0.4, 0.99], [0.8, 0.1, 0.9])
    assert np.array_equal(a[:2], b[:2]) and not np.array_equal(a[2], b[2])


def test_certain_and_impossible_drafts_stay_finite():
    assert np.isfinite(one([0.0, 1.0], [0.0, 1.0])).all()


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=12))
def test_history_counts_reached_positions_only(rounds):
    rounds = [(given, min(taken, given)) for given, taken in rounds]
    accepted, reached = 0.5, 1.0
    for count, taken in rounds:
        accepted = DECAY * accepted + taken
        reached = DECAY * reached + (count if taken == count else taken + 1)
    rate, last, full, count = history(rounds)
    assert rate == pytest.approx(accepted / reached) and 0 < rate < 1
    assert last == (rounds[-1][1] if rounds else 0)
    assert full == float(bool(rounds) and rounds[-1][0] == rounds[-1][1])
    assert count == pytest.approx(math.log(1 + len(rounds)))


def test_a_full_acceptance_of_a_short_draft_says_more_than_a_rejection_of_a_long_one():
    assert history([(1, 1)])[0] > history([(8, 1)])[0]


def test_block_features_are_those_a_draft_would_have_but_for_its_signals():
    past = [(4, 2), (3, 3)]
    block = block_features(3, np.array([2]), np.array([history(past)]))[0]
    draft = one([0.5] * 3, [0.1] * 3, KINDS[2], past)
    for name in (feature.name for feature in UTILITY):
        assert np.array_equal(block[:, [f.name for f in UTILITY].index(name)], column(draft, name)), name
    assert {f.name for f in HISTORY} <= {f.name for f in UTILITY}
