"""A recorded run: what the tables say is what the engine did, and recording changes nothing."""

import collections

import pytest
import torch

from recguide.engine.sampling import SamplingParams
from recguide.trace.reader import read_trace
from recguide.trace.recorder import Recorder
from tests.helpers import make_engine, mixed_jobs, small_model

MODEL = small_model()
JOBS = mixed_jobs(10)
SPECS = ("ar", "linear:4", "linear:8:0.5", "ar-row:5", "window:2:8", "quadratic:4", "overlap:8:1", "explore")


def record(folder, spec, jobs=JOBS):
    engine = make_engine(MODEL, spec)
    with Recorder(engine, folder / "run"):
        requests = engine.generate([p for p, _ in jobs], [q for _, q in jobs])
    return requests, engine, read_trace(folder / "run")


def rows(trace, table):
    return trace.tables[table].to_pylist()


@pytest.mark.parametrize("spec", SPECS)
def test_the_tables_add_up_to_the_statistics(tmp_path, spec):
    requests, engine, trace = record(tmp_path, spec)
    assert trace.cut == ()
    plans, positions = rows(trace, "plans"), rows(trace, "draft_positions")
    by_request = collections.defaultdict(list)
    for plan in plans:
        by_request[plan["request"]].append(plan)
    logged = {row["request"]: row for row in rows(trace, "requests")}
    for request in requests:
        mine, stats = by_request[request.id], request.stats
        assert sum(p["committed"] for p in mine) == stats.completion_tokens
        assert logged[request.id]["completion_tokens"] == stats.completion_tokens
        assert len(mine) == stats.forwards == logged[request.id]["forwards"]
        assert logged[request.id]["finish_reason"] == request.finish_reason
        verifications = [p for p in mine if p["verify"] > 0]
        assert len(verifications) == stats.num_spec_steps
        assert sum(p["verify"] for p in verifications) == stats.num_draft_tokens
        # committed = accepted + rounds - cut, rounds without a draft included
        trunks = [p for p in mine if p["verify"] >= 0]
        accepted = sum(min(p["accepted"], p["committed"]) for p in trunks)
        assert stats.completion_tokens == accepted + len(trunks) - stats.cut_tokens
    steps = rows(trace, "steps")
    assert len(steps) == engine.stats.steps
    assert sum(s["committed"] for s in steps) == sum(len(r.output) for r in requests)
    assert {s["policy"] for s in steps} == {engine.policy.spec}
    check_positions(plans, positions, requests)


def check_positions(plans, positions, requests):
    """Reached means compared; accepted means equal to the text; a draft that was not verified says nothing."""
    texts = {request.id: request.tokens for request in requests}
    starts = {(p["step"], p["request"]): p for p in plans}
    for p in positions:
        plan = starts[p["step"], p["request"]]
        place = plan["position"] + p["position"] - 1
        assert p["verified"] == (p["position"] <= plan["verify"])
        assert p["reached"] == (p["verified"] and p["position"] <= plan["accepted"] + 1)
        assert p["accepted"] == (p["position"] <= plan["accepted"])
        assert (p["correct"] is not None) == p["reached"]
        if p["accepted"] and place < len(texts[p["request"]]):
            assert p["token"] == p["correct"] == texts[p["request"]][place]
        if p["reached"] and not p["accepted"]:
            assert p["token"] != p["correct"]


@pytest.mark.parametrize("spec", ["linear:8", "overlap:8:1", "explore"])
def test_signals_are_those_of_the_draft_logits(tmp_path, spec):
    _, _, trace = record(tmp_path, spec, mixed_jobs(3))
    positions = [p for p in rows(trace, "draft_positions") if p["top1"] is not None]
    assert positions
    for p in positions:
        assert 0 < p["top1"] <= 1
        assert -1e-6 <= p["margin"] <= p["top1"] + 1e-6
        assert 0 <= p["entropy"] <= torch.tensor(13.0).log() + 1e-4
        assert p["second"] != p["token"]


@pytest.mark.parametrize("spec", ["linear:8", "quadratic:4", "overlap:8:0.5"])
def test_recording_changes_no_text_and_no_plan(tmp_path, spec):
    plain = make_engine(MODEL, spec).generate([p for p, _ in JOBS], [q for _, q in JOBS])
    recorded, _, _ = record(tmp_path, spec)
    assert [r.output for r in plain] == [r.output for r in recorded]
    assert [r.accepted_history for r in plain] == [r.accepted_history for r in recorded]


def test_changes_of_policy_are_events(tmp_path):
    engine = make_engine(MODEL, "linear:4")
    with Recorder(engine, tmp_path / "run", note="mine"):
        engine.submit([1, 2], SamplingParams(max_new_tokens=30))
        for spec in ("linear:4", "ar", "ar", "overlap:4"):
            engine.set_policy(spec)
            engine.step()
    trace = read_trace(tmp_path / "run")
    assert [(e["event"], e.get("value")) for e in trace.events] == [
        ("start", None),
        ("policy", "ar"),
        ("policy", "overlap:4"),
        ("end", None),
    ]
    assert trace.manifest["note"] == "mine"
    assert trace.manifest["model_fingerprint"] == MODEL.fingerprint
    assert engine.observer is None


def test_propensities_of_exploration_are_the_rates_of_its_plans(tmp_path):
    """Many first plans of many seeds: each kind comes as often as its logged probability says."""
    engine = make_engine(MODEL, "explore")
    with Recorder(engine, tmp_path / "run"):
        for i in range(600):
            engine.submit([1, 2, 3], SamplingParams(max_new_tokens=20, seed=i))
        while not engine.idle:
            engine.step()
    seen, chances = collections.Counter(), {}
    for p in rows(read_trace(tmp_path / "run"), "plans"):
        if p["position"] == 3 and p["held"] == 0:
            kind = (p["verify"], tuple(p["branch_parents"]), tuple(p["branch_masks"]))
            seen[kind] += 1
            chances[kind] = p["propensity"]
    total = sum(seen.values())
    assert sum(chances.values()) == pytest.approx(1.0)
    for kind, chance in chances.items():
        assert abs(seen[kind] / total - chance) < 4 * (chance / total) ** 0.5
