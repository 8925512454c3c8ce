"""T10 and the faults of a run: abort at every phase, NaN logits of one request, Ctrl-C. Nobody else is touched."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.engine.sampling import SamplingParams
from tests.helpers import (
    POLICY_SPECS,
    agreeing_model,
    assert_clean,
    drain,
    make_engine,
    mixed_jobs,
    run,
    small_model,
)

MODEL = small_model()
JOBS = mixed_jobs(8)
LONG = SamplingParams(max_new_tokens=50, temperature=0.8, seed=1)
EXPECTED = [make_engine(MODEL, max_concurrency=1).generate([prompt], params)[0].output for prompt, params in JOBS]


def assert_others_are_whole(requests):
    assert [r.output for r in requests] == EXPECTED[: len(requests)]


def test_t10_abort_while_waiting():
    engine = make_engine(MODEL, "linear:4", concurrency=1)
    others = [engine.submit(*JOBS[0])]
    engine.step()
    victim = engine.submit([1, 2], LONG)
    engine.abort(victim)
    assert (victim.finish_reason, victim.slot, victim in engine.waiting) == ("abort", None, False)
    drain(engine)
    assert victim.output == []
    assert_others_are_whole(others)
    assert_clean(engine)


def test_t10_abort_while_prefilling():
    engine = make_engine(MODEL, "linear:4", prefill_chunk=4)
    victim = engine.submit([1] * 40, LONG)
    engine.step()
    assert 0 < engine._cache.lengths[victim.slot] < 39
    engine.abort(victim)
    others = [engine.submit(*job) for job in JOBS[:3]]
    drain(engine)
    assert_others_are_whole(others)
    assert_clean(engine)


@pytest.mark.parametrize(
    ("spec", "held"),
    # quadratic has a draft at hand after every step
    [(s, h) for s in ("linear:4", "overlap:4:1", "ar-row:4") for h in (True, False)] + [("quadratic:4", True)],
)
def test_t10_abort_with_and_without_a_draft_at_hand(spec, held):
    engine = make_engine(MODEL, spec)
    others = [engine.submit(*job) for job in JOBS]
    victim = engine.submit([1, 2], LONG)
    engine.step()
    while bool(victim.draft) is not held:
        assert not victim.finished
        engine.step()
    kept = list(victim.output)
    engine.abort(victim)
    assert (victim.draft, victim.slot, victim.finish_reason) == (None, None, "abort")
    drain(engine)
    assert victim.output == kept == run(MODEL, "ar", [1, 2], **vars(LONG)).output[: len(kept)]
    assert_others_are_whole(others)
    assert_clean(engine)


@given(st.sampled_from(["ar", *POLICY_SPECS]), st.integers(0, 25), st.integers(0, 7), st.sampled_from([1, 3, 256]))
@settings(max_examples=15)
def test_t10_abort_after_any_number_of_steps(spec, steps, number, chunk):
    engine = make_engine(MODEL, spec, prefill_chunk=chunk, concurrency=4)
    requests = [engine.submit(*job) for job in JOBS]
    for _ in range(steps):
        engine.step()
    engine.abort(requests[number])
    drain(engine)
    assert requests[number].output == EXPECTED[number][: requests[number].generated]
    assert [r.output for i, r in enumerate(requests) if i != number] == EXPECTED[:number] + EXPECTED[number + 1 :]
    assert_clean(engine)


def in_mid_step(model, action):
    """Calls ``action`` once, in the middle of the next forward."""
    plain = model.backbone.forward

    def forward(*args, **rest):
        model.backbone.forward = plain
        action()
        return plain(*args, **rest)

    model.backbone.forward = forward


def test_t10_abort_from_another_thread_in_mid_step():
    model = small_model()
    engine = make_engine(model, "overlap:4:1")
    others = [engine.submit(*job) for job in JOBS[:3]]
    victim = engine.submit([1, 2], LONG)
    for _ in range(3):
        engine.step()

    def abort():
        thread = threading.Thread(target=engine.abort, args=(victim,))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()  # abort never waits for a step
        assert victim.finish_reason is None  # nor does it pull the slot away under one

    in_mid_step(model, abort)
    engine.step()
    kept = list(victim.output)
    drain(engine)
    assert (victim.finish_reason, victim.output) == ("abort", kept)
    assert_others_are_whole(others)
    assert_clean(engine)


def test_t10_abort_twice_and_after_the_end():
    engine = make_engine(MODEL)
    request = engine.generate([[1, 2]], SamplingParams(max_new_tokens=3))[0]
    engine.abort(request)
    victim = engine.submit([1], LONG)
    engine.abort(victim)
    engine.abort(victim, "again")
    assert (request.finish_reason, victim.finish_reason) == ("length", "abort")
    assert engine.stats.finished == {"length": 1, "abort": 1}
    assert_clean(engine)


@pytest.mark.timeout(120)
def test_submit_abort_and_knobs_from_other_threads():
    """Driven from one thread while three others submit, abort and turn knobs: every text is right or a prefix of it."""
    engine, requests, stop = make_engine(MODEL, "linear:4", max_concurrency=4), [], threading.Event()

    def submitter():
        for i in range(30):
            requests.append((i % 8, engine.submit(*JOBS[i % 8])))

    def aborter():
        while not stop.is_set():
            for _, request in requests[::5]:
                engine.abort(request)
            time.sleep(0.001)

    def turner():
        for i in range(200):
            engine.set_policy(POLICY_SPECS[i % len(POLICY_SPECS)])
            engine.set_concurrency(1 + i % 4)

    threads = [threading.Thread(target=f) for f in (submitter, aborter, turner)]
    for thread in threads:
        thread.start()
    while threads[0].is_alive() or not engine.idle:
        engine.step()
    stop.set()
    for thread in threads:
        thread.join(30)
    drain(engine)
    assert len(requests) == 30
    for i, (job, request) in enumerate(requests):
        if i % 5 or request.finish_reason != "abort":
            assert request.output == EXPECTED[job]
        else:
            assert request.output == EXPECTED[job][: request.generated]
    assert_clean(engine)


def spoil(model, spoiled, monkeypatch):
    """NaN in the hidden states of every row at one of the positions ``spoiled``."""
    plain = model.backbone.forward

    def forward(tokens, positions, attend, **rest):
        hidden = plain(tokens, positions, attend, **rest)
        hidden[torch.isin(positions, torch.tensor(spoiled))] = float("nan")
        return hidden

    monkeypatch.setattr(model.backbone, "forward", forward)


@pytest.mark.parametrize("spec", ["ar", "linear:4", "overlap:4:1", "quadratic:4"])
def test_nan_logits_end_one_request_with_an_error(spec, monkeypatch):
    """Only the long prompt ever reaches the spoiled positions, while its neighbours go on."""
    model = small_model()
    engine = make_engine(model, spec)
    spoil(model, list(range(100, 256)), monkeypatch)
    victim = engine.submit([1] * 90, LONG)
    others = [engine.submit(*job) for job in JOBS]
    drain(engine)
    assert (victim.finish_reason, victim.slot) == ("error", None)
    assert "not finite" in victim.error
    assert "\n" not in victim.error
    monkeypatch.undo()
    assert victim.output == run(model, "ar", [1] * 90, **vars(LONG)).output[: victim.generated]
    assert 5 <= victim.generated <= 11
    assert engine.stats.finished["error"] == 1
    assert_others_are_whole(others)
    assert_clean(engine)


def test_nan_in_a_draft_only_shortens_it(monkeypatch):
    """Draft rows behind position 12 are NaN in a draft-only forward: the draft is cut there, the text unharmed."""
    model = small_model()
    engine = make_engine(model, "linear:8", max_concurrency=1)
    expected = run(model, "ar", [1] * 10, max_new_tokens=20).output
    plain = model.backbone.forward

    def forward(tokens, positions, attend, *, first_draft_row, **rest):
        hidden = plain(tokens, positions, attend, first_draft_row=first_draft_row, **rest)
        hidden[first_draft_row:][positions[first_draft_row:] >= 12] = float("nan")
        return hidden

    monkeypatch.setattr(model.backbone, "forward", forward)
    request = engine.submit([1] * 10, SamplingParams(max_new_tokens=20))
    engine.step()
    assert len(request.draft.tokens) == 2
    drain(engine)
    assert (request.output, request.error) == (expected, None)


def test_ctrl_c_in_on_delta_keeps_partial_output_and_frees_everything():
    engine, seen = make_engine(MODEL, "linear:4", concurrency=2), []

    def on_delta(delta):
        seen.append(delta.request)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([p for p, _ in JOBS], [q for _, q in JOBS], on_delta)
    assert_clean(engine)
    for request in seen:
        number = next(i for i, (prompt, _) in enumerate(JOBS) if prompt == request.prompt)
        assert request.output == EXPECTED[number][: request.generated]
    assert any(r.output for r in seen)
    again = engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])
    assert_others_are_whole(again)


def test_ctrl_c_in_mid_step_frees_everything():
    model = small_model()
    engine = make_engine(model, "linear:4")

    def interrupt():
        raise KeyboardInterrupt

    for _ in range(3):
        in_mid_step(model, interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([[1] * 20, [2] * 3], LONG)
        assert_clean(engine)
    assert engine.generate([JOBS[0][0]], JOBS[0][1])[0].output == EXPECTED[0]


def test_ctrl_c_in_the_middle_of_attention_leaves_no_bits_of_the_step(monkeypatch):
    """Interrupted between two layers, the step has written K/V that nobody noted down."""
    model = small_model()
    engine = make_engine(model, "linear:4", max_concurrency=1)
    layer = model.backbone._layer

    def interrupted(index, *rest):
        if index == 1:
            raise KeyboardInterrupt
        return layer(index, *rest)

    monkeypatch.setattr(model.backbone, "_layer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2, 3]], LONG)
    assert_clean(engine)


def test_deltas_of_an_interrupted_run_do_not_reach_the_next():
    engine = make_engine(MODEL, "linear:4")

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2]], LONG, interrupt)
    seen = []
    request = engine.generate([[3, 4]], SamplingParams(max_new_tokens=4), seen.append)[0]
    assert {delta.request for delta in seen} == {request}


def test_deltas_stream_the_whole_output_and_end_once():
    engine, deltas = make_engine(MODEL, "overlap:4:1"), []
    requests = engine.generate([p for p, _ in JOBS], [q for _, q in JOBS], deltas.append)
    for request in requests:
        mine = [d for d in deltas if d.request is request]
        assert [t for d in mine for t in d.tokens] == request.output
        assert [d.finish_reason for d in mine if d.finish_reason] == [request.finish_reason]
        assert mine[-1].finish_reason
        assert request.submitted_at <= request.first_token_at <= request.finished_at


def test_concurrency_is_a_limit_that_moves():
    engine = make_engine(agreeing_model(), "ar", concurrency=3)
    for i in range(8):
        engine.submit([i], LONG)
    sizes = []
    for limit in (3, 5, 5, 2, 1):
        engine.set_concurrency(limit)
        engine.step()
        sizes.append(len(engine.running))
    assert sizes == [3, 5, 5, 5, 5]  # those that run finish first
    drain(engine)
    assert_clean(engine)
