"""R1 and R3: whatever the policy, the company, the arrival and the knobs, a request's tokens are those of ``ar`` alone.

Covers T2, T4, T6, T14, T18, T20 and T22 of the published checkpoints' test list. All in float32, token for token.
"""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.engine.sampling import SamplingParams
from recguide.policies import POLICIES
from tests.helpers import (
    POLICY_SPECS,
    SAMPLERS,
    SMALL,
    agreeing_model,
    assert_clean,
    assert_counts_agree,
    drain,
    foresight,
    make_engine,
    mixed_jobs,
    run,
    small_model,
)

MODEL = small_model()
JOBS = mixed_jobs(16)


def outcome(request):
    return request.output, request.finish_reason, request.stop_text


@cache
def ar_outcomes():
    """What each job gives alone under ``ar``."""
    return [outcome(make_engine(MODEL, max_concurrency=1).generate([prompt], params)[0]) for prompt, params in JOBS]


def submit(engine, jobs):
    return [engine.submit(prompt, params) for prompt, params in jobs]


def test_the_reference_outcomes_are_worth_comparing():
    reasons = [reason for _, reason, _ in ar_outcomes()]
    assert set(reasons) == {"length", "eos", "stop"}
    assert len({tuple(tokens[:6]) for tokens, _, _ in ar_outcomes()}) > 10


def test_every_policy_is_covered():
    assert {spec.split(":")[0] for spec in POLICY_SPECS} | {"ar"} == set(POLICIES)


EVERY_SAMPLER = (
    "linear:8",
    "ar-row:8",
    "quadratic:4",
    "overlap:8:1",
    "window:2:32",
    "recguide",
    "paper-adaptive",
    "budget",
)
PAIRS = [(p, s) for p in POLICY_SPECS for s in SAMPLERS if p in EVERY_SAMPLER or s in ("greedy", "warm")]


@pytest.mark.parametrize(("spec", "sampler"), PAIRS)
def test_t04_alone(spec, sampler):
    params = {"max_new_tokens": 40, "seed": 11, **SAMPLERS[sampler]}
    request = run(MODEL, spec, [3, 1, 4, 1, 5], **params)
    assert request.output == run(MODEL, "ar", [3, 1, 4, 1, 5], **params).output
    assert_counts_agree(request)


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_t14_among_fifteen_others(spec):
    engine = make_engine(MODEL, spec, prefill_chunk=7)
    requests = submit(engine, JOBS)
    drain(engine)
    assert [outcome(r) for r in requests] == ar_outcomes()
    assert_clean(engine)


@pytest.mark.parametrize("spec", ["linear:8", "ar-row:8", "quadratic:4", "overlap:8:1", "budget:8:40"])
def test_t04_drafts_are_accepted_and_rejected(spec):
    """The comparison means something only when both happen, and not always at the same place."""
    engine = make_engine(MODEL, spec)
    submit(engine, JOBS)
    drain(engine)
    counts = engine.stats.requests
    assert 0.05 < counts.draft_acceptance_rate < 0.9
    assert len(counts.acceptance_histogram) >= 4


@pytest.mark.parametrize("spec", ["quadratic:4", "overlap:8:1", "ar-row:4"])
def test_branches_come_true(spec):
    engine = make_engine(MODEL, spec)
    submit(engine, JOBS)
    drain(engine)
    kinds = {
        "quadratic": {"open", "continuation"},
        "overlap": {"correction", "continuation"},
        "ar-row": {"continuation"},
    }
    reused = engine.stats.requests.branches_reused
    assert kinds[spec.split(":")[0]] <= {kind for kind, count in reused.items() if count}


PROMPTS = st.lists(st.integers(0, 12), min_size=1, max_size=40)
POLICY = st.sampled_from(POLICY_SPECS)


@given(
    PROMPTS,
    st.integers(1, 60),
    st.integers(0, 2**62),
    st.sampled_from([1, 3, 256]),
    POLICY,
    st.sampled_from(sorted(SAMPLERS)),
)
@settings(max_examples=60)
def test_any_prompt_length_seed_and_chunk(prompt, length, seed, chunk, spec, sampler):
    params = SamplingParams(max_new_tokens=length, seed=seed, **SAMPLERS[sampler])
    engine = make_engine(MODEL, spec, prefill_chunk=chunk, max_concurrency=1)
    expected = make_engine(MODEL, max_concurrency=1).generate([prompt], params)[0]
    assert outcome(engine.generate([prompt], params)[0]) == outcome(expected)


events = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.one_of(
            st.tuples(st.just("policy"), POLICY | st.just("ar")),
            st.tuples(st.just("concurrency"), st.integers(1, 16)),
            st.tuples(st.just("adapter"), st.booleans()),
            st.tuples(st.just("submit"), st.integers(1, 5)),
        ),
    ),
    max_size=14,
)


def turn(engine, knob, value):
    if knob == "policy":
        engine.set_policy(value)
    elif knob == "concurrency":
        engine.set_concurrency(value)
    else:
        engine.adapter_enabled = value


@given(events, st.permutations(range(16)), st.sampled_from([1, 3, 256]))
@settings(max_examples=15)
def test_t20_any_arrival_policy_concurrency_and_adapter_in_mid_run(events, order, chunk):
    """Requests arrive while others run; every knob is turned in between; each still gets its own text."""
    engine = make_engine(MODEL, "linear:4", prefill_chunk=chunk, concurrency=4)
    left, requests = list(order), {}
    for steps, (knob, value) in events:
        for _ in range(value if knob == "submit" else 0):
            if left:
                job = left.pop(0)
                requests[job] = engine.submit(*JOBS[job])
        if knob != "submit":
            turn(engine, knob, value)
        for _ in range(steps):
            engine.step()
    requests |= {job: engine.submit(*JOBS[job]) for job in left}
    drain(engine)
    assert {job: outcome(r) for job, r in requests.items()} == dict(enumerate(ar_outcomes()))
    assert_clean(engine)


def test_t20_acceptance_of_a_request_does_not_depend_on_concurrency():
    counts = []
    for concurrency in (1, 2, 5, 16):
        engine = make_engine(MODEL, "linear:8", concurrency=concurrency)
        requests = submit(engine, JOBS)
        drain(engine)
        counts.append([(r.stats.num_accepted_draft_tokens, r.stats.num_draft_tokens) for r in requests])
    assert counts.count(counts[0]) == len(counts)


def test_t22_call_order_leaves_nothing_behind():
    """One engine through every policy, forwards and backwards, gives what a fresh engine gives."""
    engine = make_engine(MODEL)
    for spec in ("ar", *POLICY_SPECS, *reversed(POLICY_SPECS[::3]), "ar"):
        engine.set_policy(spec)
        for job in (2, 5):
            prompt, params = JOBS[job]
            assert outcome(engine.generate([prompt], params)[0]) == ar_outcomes()[job], spec
    assert_clean(engine)


def test_t06_adapter_changes_acceptance_and_never_text():
    accepted = []
    for enabled in (True, False):
        engine = make_engine(MODEL, "linear:8")
        engine.adapter_enabled = enabled
        requests = submit(engine, JOBS)
        drain(engine)
        assert [outcome(r) for r in requests] == ar_outcomes()
        accepted.append([r.stats.num_accepted_draft_tokens for r in requests])
    assert accepted[0] != accepted[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("block", [2, 4, 8, 32])
def test_a_drafter_that_is_always_right_is_always_accepted(block, temperature):
    """Same noise in draft and verify: with equal logits every draft is accepted, at any temperature."""
    request = run(agreeing_model(), f"linear:{block}", [1, 2], max_new_tokens=3 * block, temperature=temperature)
    assert request.stats.draft_acceptance_rate == 1
    assert request.stats.mean_acceptance_length == block


@pytest.mark.parametrize("wrong", range(8))
def test_the_first_wrong_draft_ends_acceptance(wrong):
    reference = run(MODEL, "ar", [1, 2, 3], max_new_tokens=40, temperature=0.8).output
    request = run(MODEL, foresight(reference, 8, wrong), [1, 2, 3], max_new_tokens=40, temperature=0.8)
    assert request.output == reference
    whole = {k for k, n in request.stats.acceptance_histogram.items() if n}
    assert max(whole) == wrong


def test_t18_quadratic_verifies_and_drafts_in_one_forward():
    """Trunk and an open branch of L masks after each of its rows: with L - 1 drafts that is L + L * L rows."""
    model, block = agreeing_model(), 5
    engine = make_engine(model, f"quadratic:{block}", max_concurrency=1)
    request = engine.submit([1, 2], SamplingParams(max_new_tokens=40, temperature=1.0, seed=0))
    rows = []
    while not engine.idle:
        engine.step()
        rows.append((engine.last_step.rows, engine.last_step.committed))
    assert rows[1:4] == [(block * (block + 1), block)] * 3
    assert request.output == run(model, "ar", [1, 2], max_new_tokens=40, temperature=1.0).output


REAL_MASK = small_model(config=SMALL.__class__(**{**vars(SMALL), "mask_id": 5}))


@pytest.mark.parametrize("spec", POLICY_SPECS)
@pytest.mark.parametrize("prompt", [[5], [5, 5, 5, 5], [1, 5, 2, 5]])
def test_t02_a_seed_that_is_the_mask_id_stays_the_seed(spec, prompt):
    params = {"max_new_tokens": 24, "temperature": 0.8}
    request = run(REAL_MASK, spec, prompt, **params)
    assert request.output == run(REAL_MASK, "ar", prompt, **params).output
    assert 5 not in request.output
