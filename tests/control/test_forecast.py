"""What is expected of requests: a past that keeps a request from drafting does not do so for ever."""

from recguide.control.forecast import STALE, Forecaster
from recguide.control.monitor import Monitor
from recguide.engine.request import Request
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


def test_a_good_past_stays_good(monkeypatch):
    expect, good = forecaster(monkeypatch), request((3, 3), (3, 3))
    good.tokens += [5] * (3 * STALE)
    assert expect([good])[0].bucket == 1
