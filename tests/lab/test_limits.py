"""Limits cut plans, never texts."""

import pytest
from recguide.lab.limits import LIMITS, Limited, cut, limits_of
from recguide.lab.settings import LabSettings

from recguide.engine.plan import Branch, RequestPlan
from recguide.engine.sampling import SamplingParams
from recguide.policies import parse_policy
from tests.helpers import POLICY_SPECS, make_engine, mixed_jobs, small_model

MODEL = small_model()
JOBS = mixed_jobs(6)
CASES = [(64, 8, 0.3), (2, 8, 0.0), (0, 8, 0.0), (3, 0, 0.0), (1, 1, 0.5), (64, 8, 1.0)]


def under(spec, *values):
    made = Limited(parse_policy(spec))
    made.limits = dict(zip(LIMITS, values, strict=True))
    return made


def outputs(policy):
    engine = make_engine(MODEL, policy)
    return [r.output for r in engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])], engine


PLAIN, _ = outputs("ar")


@pytest.mark.parametrize("limits", CASES, ids=str)
@pytest.mark.parametrize("spec", POLICY_SPECS[::3])
def test_no_limit_changes_a_text(spec, limits):
    found, engine = outputs(under(spec, *limits))
    assert found == PLAIN
    trim, branches, _ = limits
    stats = engine.stats.requests
    if not trim:
        assert stats.num_draft_tokens == 0
    if not branches:
        assert set(stats.branches_drafted) <= {"draft"}


def test_trim_bounds_what_is_verified():
    _, engine = outputs(under("linear:8", 2, 8, 0.0))
    assert max(engine.stats.requests.acceptance_histogram) <= 2
    assert engine.stats.requests.num_draft_tokens <= 2 * engine.stats.requests.num_spec_steps


@pytest.mark.parametrize(
    ("plan", "trim", "branches", "wanted"),
    [
        (RequestPlan(6, (Branch(7, None, 4),)), 3, 8, RequestPlan(3, (Branch(4, None, 4),))),
        (RequestPlan(6, (Branch(2, 5, 4), Branch(6, 1, 4))), 3, 8, RequestPlan(3, (Branch(2, 5, 4),))),
        (RequestPlan(6, (Branch(2, 5, 4), Branch(7, None, 4))), 6, 1, RequestPlan(6, (Branch(2, 5, 4),))),
        (RequestPlan(None, (Branch(0, 1, 4),)), 6, 0, RequestPlan(None, (Branch(0, 1, 4),))),
        (RequestPlan(None, (Branch(0, 1, 4),), 0.25), 0, 8, RequestPlan(0, (), 0.25)),
    ],
)
def test_plans_are_cut_as_told(plan, trim, branches, wanted):
    assert cut(plan, trim, branches) == wanted


def test_without_a_limit_the_policy_itself_plans():
    made = Limited(parse_policy("overlap:5"))
    assert made.spec == "overlap:5"
    made.limits = limits_of(LabSettings(trim=2, explore=0.25))
    assert made.spec == "overlap:5 (trim=2, explore=0.25)"


def test_a_limited_policy_is_all_that_its_inner_one_is():
    for spec in ("paper-adaptive", "ema-tiers", "budget", "overlap:5"):
        inner = parse_policy(spec)
        made = Limited(inner)
        for name in ("needs_signals", "needs_verifier_entropy", "learns", "fallbacks"):
            assert getattr(made, name) == getattr(inner, name)


def test_random_plans_come_at_their_share_with_their_propensity():
    policy = under("ar", 64, 8, 0.4)
    engine = make_engine(MODEL, policy)
    requests = [engine.prepare([1, 2, 3], SamplingParams(max_new_tokens=20, seed=i)) for i in range(600)]
    plans = policy.plan(requests)
    plain = [plan for plan in plans if plan.propensity == pytest.approx(0.6)]
    assert len(plain) / 600 == pytest.approx(0.6, abs=0.07)
    assert all(plan.propensity <= 0.4 for plan in plans if plan not in plain)
