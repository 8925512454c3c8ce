"""Replay: a policy against itself gains nothing, the oracle is never beaten by hindsight, and the log is read as it
was."""

import numpy as np
import pytest

from recguide.control.replay import replay
from recguide.control.step_time import RowCost
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.policies import parse_policy
from recguide.trace.reader import read_trace
from recguide.trace.recorder import Recorder
from tests.controllers import handmade_for
from tests.helpers import small_model

MODEL = small_model(shift=1)
COST = RowCost(1.0, 0.01)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "run"
    engine = Engine(MODEL, "ar-row:5", max_concurrency=4, max_context=128)
    params = [SamplingParams(max_new_tokens=40, seed=i, eos_ids=frozenset()) for i in range(8)]
    with Recorder(engine, folder):
        engine.generate([[1 + i, 2, 3] for i in range(8)], params)
    return read_trace(folder)


def played(run, spec):
    policy = parse_policy(spec)
    policy.attach(MODEL)
    return replay(run, policy, handmade_for(MODEL), COST)


def test_the_recorded_policy_gains_nothing_on_itself(run):
    result = played(run, "ar-row:5")
    assert all(d.plan.verify == d.other.verify for d in result.decisions)
    assert result.gain == pytest.approx(0, abs=0.02) and result.interval[0] <= 0 <= result.interval[1]
    assert result.known_share == 1.0


def test_every_recorded_plan_is_a_decision(run):
    result = played(run, "ar")
    assert len(result.decisions) == len(run.tables["plans"])
    assert all(d.other.verify == 0 and not d.other.branches for d in result.decisions)
    low, high = result.interval
    assert low <= result.gain <= high and result.gain != 0


def test_the_worst_come_first(run):
    worst = played(run, "ar").worst(5)
    assert len(worst) == 5 and np.all(np.diff([d.regret for d in worst]) <= 0)


def test_the_oracle_is_not_beaten_by_what_the_log_knows(run):
    result = played(run, "ar-row:5")
    plain = [d for d in result.decisions if not d.plan.branches]
    assert plain and all(d.regret >= -1e-6 for d in plain)


def test_beyond_the_log_the_model_goes_on(run):
    result = played(run, "recguide")
    assert all(d.earned < 12 and d.other_earned < 12 for d in result.decisions)
    assert 0 < result.known_share <= 1


def test_a_log_without_step_times_is_refused(run):
    import dataclasses

    bare = dataclasses.replace(run, tables={**run.tables, "steps": run.tables["steps"].slice(0, 0)})
    with pytest.raises(RecGuideError, match="no step times"):
        played(bare, "ar")
