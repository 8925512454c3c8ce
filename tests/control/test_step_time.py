"""Which step time a policy plans with: the measured table where there is one; otherwise a line, and it says so."""

import numpy as np
import pytest

from recguide.control.cost import Axes, CostTable
from recguide.control.profile import identity_of
from recguide.control.step_time import RowCost, step_time_of
from tests.helpers import make_engine, small_model

MODEL = small_model()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path))
    return tmp_path


def save_table():
    axes = Axes((1, 8), (1, 8), (64,))
    times = np.full(axes.shape, 7.0)
    CostTable(identity_of(MODEL), axes, times, times, {}).save(identity_of(MODEL).path)


def test_without_a_table_a_line_stands_in_and_is_named(cache):
    time, why = step_time_of(MODEL)
    assert time == RowCost()
    assert "20 ms and 0.65 ms a row" in why
    assert "'recguide profile' measures one" in why
    assert str(cache) not in why  # it is stored with results


def test_rows_that_draft_cost_twice():
    assert RowCost(floor_ms=10, row_ms=0.5).predict(2, 4, 3, 100) == 10 + 0.5 * (4 + 6)


def test_a_measured_table_is_used(cache):
    save_table()
    time, why = step_time_of(MODEL)
    assert (time.predict(1, 1, 0, 64), why) == (7.0, None)


def test_a_damaged_table_is_named_and_not_used(cache):
    save_table()
    identity_of(MODEL).path.write_text("{")
    time, why = step_time_of(MODEL)
    assert time == RowCost()
    assert "not a cost table" in why


def test_the_engine_attaches_a_policy_before_it_plans(cache):
    engine = make_engine(MODEL, "paper-adaptive")
    assert "policy paper-adaptive: steps are taken to cost" in engine.policy.fallbacks[0]
    save_table()
    engine.set_policy("paper-adaptive")
    assert engine.policy.fallbacks == ()
    assert engine.policy.step_time.predict(8, 8, 0, 64) == 7.0
    engine.set_policy("ema-tiers")
    assert engine.policy.fallbacks == ()


@pytest.mark.slow
def test_the_shipped_table_stands_in_for_devices_that_were_not_measured(cache, real_float32):
    time, why = step_time_of(real_float32)
    assert time.identity.model == real_float32.fingerprint
    assert "step times are those of another device" in why
    assert time.predict(8, 8, 0, 200) > time.predict(1, 1, 0, 200) > 0
