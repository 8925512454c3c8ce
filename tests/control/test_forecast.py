"""What is expected of requests: a past that keeps a request from drafting does not do so for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.control.features import GROUP, KINDS, block_features, draft_features, history
from recguide.control.forecast import STALE, Forecaster
from recguide.control.monitor import Monitor
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from tests.controllers import handmade


def forecaster(monkeypatch):
    controller = handmade()
    made = Forecaster(controller, Monitor(controller.usual))
    monkeypatch.setattr(made, "_bucket", lambda past: int(past[0] >= 0.5))  # 0: drafts badly
    return made


def request(*rounds):
    made = Request(0, [1, 2, 3], SamplingParams(seed=0), frozenset(), 100)
    made.accepted_history += rounds
    return made


def test_a_bad_past_grows_stale(monkeypatch):
    expect, bad = forecaster(monkeypatch), request((3, 0), (3, 0))
    assert expect([bad])[0].bucket == 0
    for _ in range(STALE - 1):
        bad.tokens.append(5)
        assert expect([bad])[0].bucket == 0
    bad.tokens.append(5)
    assert expect([bad])[0].bucket == 1  # as without a past
    bad.accepted_history.append((3, 0))  # tried again, as bad as before
    assert expect([bad])[0].bucket == 0


ROUND = st.integers(1, 12).flatmap(lambda given: st.tuples(st.just(given), st.integers(0, given)))


@given(st.lists(ROUND, max_size=40))
def test_a_past_falls_into_the_bucket_of_what_utility_expects_after_it(rounds):
    controller = handmade()
    past = np.array(history(rounds)).round(1)
    past[1] = min(past[1], controller.places)
    rows = block_features(controller.places, np.array([KINDS.index("continuation")]), past[None])[0]
    expected = np.cumprod(controller.utility(rows)).sum()
    [seen] = Forecaster(controller, Monitor(controller.usual))([request(*rounds)])
    assert seen.bucket == np.digitize(expected, controller.edges)


def test_a_good_past_stays_good(monkeypatch):
    expect, good = forecaster(monkeypatch), request((3, 3), (3, 3))
    good.tokens += [5] * (3 * STALE)
    assert expect([good])[0].bucket == 1


def holding(top1, margin, kind="continuation", tokens=None):
    made = request((3, 1))
    made.draft = Draft(list(range(tokens or len(top1))), kind, top1, margin)
    return made


def test_each_draft_is_scored_as_if_it_were_alone_and_moved_by_what_its_group_showed(monkeypatch):
    expect = forecaster(monkeypatch)
    drafts = [holding([0.9, 0.4], [0.7, 0.1]), request(), holding([0.6] * 4, [0.2] * 4, "tail")]
    expect._monitor.offsets[GROUP[KINDS.index("tail")]] = 0.5, 0.0, -1.0
    seen = expect(drafts)
    assert seen[1][:3] == ([], [], [])
    for held, found in zip(drafts[::2], seen[::2], strict=True):
        draft, group = held.draft, GROUP[KINDS.index(held.draft.kind)]
        rows = np.array(
            draft_features(draft.top1, draft.margin, KINDS.index(draft.kind), history([(3, 1)])), np.float32
        )
        chance = expect._controller.mismatch(rows)
        moved = np.log(chance / (1 - chance)) + [expect._monitor.offsets[group][min(j, 2)] for j in range(len(rows))]
        assert found.conditional == pytest.approx((1 / (1 + np.exp(-moved))).tolist())
        assert found.survival == pytest.approx(np.cumprod(found.conditional).tolist())
        assert found.second == pytest.approx(expect._controller.second(rows).tolist())


def test_where_signals_are_missing_the_usual_acceptance_is_expected(monkeypatch):
    expect = forecaster(monkeypatch)
    usual = expect._controller.usual[GROUP[KINDS.index("continuation")]].tolist()
    [without] = expect([holding([], [], tokens=3)])
    assert without.conditional == pytest.approx(usual[:3]) and without.second == [0.0] * 3
    whole, cut = expect([holding([0.9, 0.8, 0.7], [0.5] * 3), holding([0.9, float("nan"), 0.7], [0.5] * 3)])
    assert cut.conditional == pytest.approx([whole.conditional[0], *usual[1:3]])


def test_drafts_beyond_the_places_it_knows_are_not_counted(monkeypatch):
    expect = forecaster(monkeypatch)
    places = expect._controller.places
    for signals in ([0.8] * (places + 3), []):
        [seen] = expect([holding(signals, signals, tokens=places + 3)])
        assert len(seen.conditional) == len(seen.survival) == len(seen.second) == places
