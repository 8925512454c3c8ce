"""The learned controller in the engine: prices, files that do not fit, drift, exploration, constancy and its knobs."""

import numpy as np
import pytest

from recguide.control.features import GROUPS, MOST
from recguide.control.step_time import RowCost
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.policies import learned, parse_policy
from recguide.trace.reader import read_trace
from recguide.trace.recorder import Recorder
from tests.controllers import handmade
from tests.helpers import small_model

PROMPTS = [[1 + i % 9, 2, 3, (5 * i) % 11] for i in range(12)]


def engine_of(spec="recguide", model=None, cost=None, concurrency=4, monkeypatch=None):
    if cost is not None:
        monkeypatch.setattr(learned, "step_time_of", lambda model: (cost, None))
    return Engine(model or small_model(shift=1), spec, max_concurrency=12, concurrency=concurrency, max_context=128)


def play(engine, count=40, prompts=PROMPTS):
    params = [SamplingParams(max_new_tokens=count, seed=i, eos_ids=frozenset()) for i in range(len(prompts))]
    return engine.generate(prompts, params)


def test_rows_that_are_free_are_bought_and_dear_ones_are_not(monkeypatch):
    free = engine_of(cost=RowCost(20.0, 0.01), monkeypatch=monkeypatch)
    dear = engine_of(cost=RowCost(0.1, 20.0), monkeypatch=monkeypatch)
    rows = [np.mean([r.stats.rows / r.stats.forwards for r in play(e)]) for e in (free, dear)]
    assert rows[0] > 3 and rows[1] == 1.0
    assert free.policy.status()["price"] > 0 and free.policy.status()["block_mix"]


def test_the_price_override_buys_fewer_rows_the_dearer_it_makes_them(monkeypatch):
    cost, rows = RowCost(20.0, 0.6), {}
    for price in (0.2, 1, 5):
        engine = engine_of(f"recguide:price={price}:online=0", cost=cost, concurrency=1, monkeypatch=monkeypatch)
        rows[price] = np.mean([r.stats.rows / r.stats.forwards for r in play(engine)])
    assert rows[0.2] > 1.1 * rows[1] > 1.21 * rows[5]


def test_load_shifts_it_to_plain_decoding(monkeypatch):
    cost = RowCost(20.0, 1.6)
    rows = []
    for concurrency in (1, 12):
        engine = engine_of(cost=cost, concurrency=concurrency, monkeypatch=monkeypatch)
        rows.append(np.mean([r.stats.rows / r.stats.forwards for r in play(engine)]))
    assert rows[0] > 1.5 and rows[1] < 1.1 * min(rows[0], 1.2)


def test_constant_input_gives_constant_plans(monkeypatch):
    engine = engine_of("recguide:online=0", cost=RowCost(20.0, 0.3), monkeypatch=monkeypatch)
    requests = play(engine, 12)
    plans = [engine.policy.plan(requests) for _ in range(5)]
    assert all(each == plans[0] for each in plans)


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (handmade("another", 1), "controller of model another, this model is"),
        (handmade(small_model(shift=1).fingerprint, 0), "draft_shift 0, this one's is 1"),
    ],
)
def test_a_controller_of_something_else_is_refused(tmp_path, controller, message):
    controller.save(tmp_path / "c.safetensors")
    with pytest.raises(RecGuideError, match=message):
        engine_of(f"recguide:{tmp_path}/c.safetensors")


def test_a_refused_controller_leaves_the_engine_as_it_was(tmp_path):
    engine = engine_of("ar")
    with pytest.raises(RecGuideError, match="recguide train"):
        engine.set_policy(f"recguide:{tmp_path}/none.safetensors")
    assert engine.policy.name == "ar" and play(engine, 3)[0].finished


def test_without_a_shipped_controller_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(learned, "shipped_controller", lambda model: None)
    with pytest.raises(RecGuideError, match="no controller ships for model 'small'; train one"):
        engine_of()


def test_a_dead_drafter_is_flagged_within_50_rounds_and_text_stays(monkeypatch):
    cost, dead = RowCost(20.0, 0.05), small_model(shift=1)
    dead.adapter.mask_embedding[0] = -1.0  # what makes its drafts right half of the time, turned round
    engine = engine_of(model=dead, cost=cost, concurrency=1, monkeypatch=monkeypatch)
    engine.policy.monitor._usual = [[0.85] * MOST] * len(GROUPS)  # a good drafter, as far as training knows
    plain = play(engine_of("ar"), 100, PROMPTS[:2])
    verified = []
    told = engine.policy.monitor.learn
    monkeypatch.setattr(
        engine.policy.monitor, "learn", lambda *a, **k: (verified.append(engine.policy.drift), told(*a, **k))
    )
    drafted = play(engine, 100, PROMPTS[:2])
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert verified.index(next(filter(None, verified))) <= 50
    assert "adapter" in engine.policy.drift and engine.policy.status()["drift"] == engine.policy.drift


def test_drifted_it_decodes_plainly_and_probes(monkeypatch):
    engine = engine_of(cost=RowCost(20.0, 0.01), monkeypatch=monkeypatch)
    engine.policy.monitor.drift = "for a test"
    monkeypatch.setattr(engine.policy.monitor, "_judge", lambda: None)
    requests = play(engine)
    drafts = sum(r.stats.num_spec_steps for r in requests)
    forwards = sum(r.stats.forwards for r in requests)
    assert 0 < drafts < 0.05 * forwards


def test_exploration_is_drawn_with_the_chance_it_logs(monkeypatch, tmp_path):
    engine = engine_of("recguide:explore=0.4", cost=RowCost(20.0, 0.3), monkeypatch=monkeypatch)
    with Recorder(engine, tmp_path / "run"):
        play(engine, 60, PROMPTS * 2)
    plans = read_trace(tmp_path / "run").tables["plans"].to_pylist()
    chances = np.array([p["propensity"] for p in plans])
    assert (chances > 0).all() and (chances <= 1).all()
    explored = chances < 0.5  # its own plan has at least 0.6
    assert explored.mean() == pytest.approx(0.4, abs=0.15)


def test_plans_are_logged_with_what_was_expected(monkeypatch, tmp_path):
    engine = engine_of(cost=RowCost(20.0, 0.1), monkeypatch=monkeypatch)
    with Recorder(engine, tmp_path / "run"):
        play(engine)
    plans = read_trace(tmp_path / "run").tables["plans"].to_pylist()
    held = [p for p in plans if p["held"]]
    assert held and all(p["predicted_value"] >= 1 and p["predicted_ms"] > 20 for p in held)
    assert all(p["alternatives"].count(",") == min(p["held"], 8) for p in held)


def test_a_floor_and_fairness_favour_slow_requests(monkeypatch):
    engine = engine_of("recguide:latency_weight=1", cost=RowCost(20.0, 0.5), monkeypatch=monkeypatch)
    requests = play(engine, 10)
    engine.policy._since = {}
    engine.policy._weights(requests)  # sees them for the first time
    engine.policy._seconds += 1.0
    for request, rate in zip(requests, np.linspace(1, 4, len(requests)), strict=True):
        request.tokens += [1] * int(rate * 10)
    weights = np.array(engine.policy._weights(requests))
    assert (np.diff(weights) <= 0).all() and weights[0] > weights[-1] and weights.mean() == pytest.approx(1)
    engine.set_policy("recguide:floor=1000")
    assert engine.policy._weights(requests)[0] == pytest.approx(1)  # all are below it alike
    assert parse_policy("recguide").latency_weight == 0


def test_drafts_of_another_policy_have_no_signals_and_are_still_planned(monkeypatch):
    engine = engine_of("linear:6", cost=RowCost(20.0, 0.2), monkeypatch=monkeypatch)
    requests = [
        engine.submit(p, SamplingParams(max_new_tokens=30, seed=i, eos_ids=frozenset())) for i, p in enumerate(PROMPTS)
    ]
    while not any(r.draft for r in requests):
        engine.step()
    engine.set_policy("recguide")
    while not engine.idle:
        engine.step()
    assert [r.output for r in requests] == [r.output for r in play(engine_of("ar"), 30)]


def test_signals_that_are_not_finite_count_as_none(monkeypatch):
    engine = engine_of(cost=RowCost(20.0, 0.2), monkeypatch=monkeypatch)
    requests = [engine.submit(p, SamplingParams(max_new_tokens=30, seed=i)) for i, p in enumerate(PROMPTS[:4])]
    while not all(r.draft for r in requests if not r.finished) or not engine.running:
        engine.step()
        if engine.idle:
            pytest.skip("no moment at which every request holds a draft")
    for request in requests:
        if request.draft:
            request.draft.top1 = [float("nan")] * len(request.draft.tokens)
    plans = engine.policy.plan(engine.running)
    assert all(np.isfinite(plan.outlook.value) for plan in plans if plan.outlook)
