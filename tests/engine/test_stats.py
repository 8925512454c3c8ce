"""Statistics: identities that hold whatever was cut, denominators of reached positions, step records (T17)."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.sampling import SamplingParams
from recguide.engine.stats import RequestStats
from tests.helpers import (
    POLICY_SPECS,
    agreeing_model,
    assert_counts_agree,
    drain,
    foresight,
    make_engine,
    mixed_jobs,
    run,
    small_model,
)

MODEL = small_model()


@cache
def finished(spec, count=16):
    engine = make_engine(MODEL, spec)
    requests = [engine.submit(prompt, params) for prompt, params in mixed_jobs(count)]
    records = []
    while not engine.idle:
        engine.step()
        records.append(engine.last_step)
    return engine, requests, records


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_identities_hold_for_every_request(spec):
    engine, requests, records = finished(spec)
    for request in requests:
        assert_counts_agree(request)
        s = request.stats
        assert s.num_spec_steps + s.num_steps_without_draft <= s.forwards
        assert s.rows >= s.completion_tokens
    total = engine.stats.requests
    assert total.completion_tokens == engine.stats.committed == sum(r.generated for r in requests)
    assert sum(engine.stats.finished.values()) == len(requests)
    assert engine.stats.rows == sum(r.rows for r in records)
    assert engine.stats.rows == total.rows + engine.stats.prefill_rows
    assert engine.stats.prefill_rows == sum(len(r.prompt) - 1 for r in requests)


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_committed_is_accepted_plus_verifications_minus_cut_plus_ar_steps(spec):
    """Also where EOS or a stop string cuts several accepted drafts off."""
    _, requests, _ = finished(spec)
    for s in (r.stats for r in requests):
        assert s.completion_tokens == (
            s.num_accepted_draft_tokens + s.num_spec_steps - s.cut_tokens + s.num_steps_without_draft
        )


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 9)), max_size=20))
def test_counts_follow_kept_tokens_only(rounds):
    """Against a plain recount: position j is reached when drafts 0..j-1 were accepted and the text goes on to j."""
    stats, reached, kept_at, committed = RequestStats(), [0] * 9, [0] * 9, 0
    for drafted, accepted, kept in rounds:
        accepted = min(accepted, drafted)
        kept = min(kept, accepted + 1)
        stats.verified(drafted, accepted, kept)
        committed += kept
        for j in range(min(kept, drafted)):
            reached[j] += 1
            kept_at[j] += j < accepted
    assert stats.completion_tokens == committed
    assert [stats.reached[j] for j in range(9)] == reached
    assert [stats.kept_at[j] for j in range(9)] == kept_at
    assert stats.num_accepted_draft_tokens == sum(kept_at)


def test_a_position_behind_eos_is_not_reached():
    """The last accepted draft is EOS; the draft behind it was compared with a token that is no part of the text."""
    stats = RequestStats()
    stats.verified(drafted=4, accepted=2, kept=2)
    assert stats.conditional_acceptance() == [1.0, 1.0]


def test_rejections_are_counted_at_their_place():
    reference = run(MODEL, "ar", [1, 2, 3], max_new_tokens=41, temperature=0.8).output
    request = run(MODEL, foresight(reference, 8, wrong=3), [1, 2, 3], max_new_tokens=41, temperature=0.8)
    s = request.stats
    assert s.acceptance_histogram == {3: 10, 0: 0} or s.acceptance_histogram == {3: 10}
    assert dict(s.reached) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert s.conditional_acceptance() == [1, 1, 1, 0]
    assert (s.mean_acceptance_length, s.num_steps_without_draft) == (4.0, 1)
    assert s.draft_acceptance_rate == pytest.approx(30 / s.num_draft_tokens)


def test_ar_steps_are_counted_and_have_no_acceptance():
    s = run(MODEL, "ar", [1, 2, 3], max_new_tokens=12).stats
    assert (s.num_steps_without_draft, s.forwards, s.rows, s.num_spec_steps) == (12, 12, 12, 0)
    assert (s.mean_acceptance_length, s.draft_acceptance_rate) == (None, None)
    assert (s.tokens_per_forward, s.rows_per_token) == (1, 1)


def test_nothing_is_divided_by_zero():
    s = RequestStats()
    assert [s.mean_acceptance_length, s.draft_acceptance_rate, s.tokens_per_forward, s.rows_per_token] == [None] * 4
    assert s.conditional_acceptance() == []
    assert make_engine(MODEL).stats.share_outside_forward is None


def test_t17_rows_and_forwards_are_both_reported():
    """A perfect drafter, block 4: linear takes two forwards and 8 rows for 4 tokens."""
    s = run(agreeing_model(), "linear:4", [1], max_new_tokens=40, temperature=1.0).stats
    assert (s.tokens_per_forward, s.rows_per_token) == (2.0, 2.0)
    assert (s.forwards, s.rows, s.num_draft_tokens) == (20, 80, 30)


@pytest.mark.parametrize("spec", ["overlap:8:0", "overlap:8:1", "ar-row:8", "quadratic:8"])
def test_t17_useless_branches_cost_no_forward(spec):
    """Branches that never come true ride along: no more forwards than tokens, which is what ``ar`` takes."""
    for prompt in ([1, 2], [7, 7, 3]):
        s = run(small_model(leaning=0.0), spec, prompt, max_new_tokens=40).stats
        assert s.forwards <= s.completion_tokens


@pytest.mark.parametrize("spec", ["overlap:8:1", "quadratic:4", "ar-row:8"])
def test_t17_a_reused_draft_follows_the_committed_text(spec):
    """A draft at hand is what a fresh engine drafts behind exactly the text committed by then."""
    params = SamplingParams(max_new_tokens=200, temperature=0.8, seed=5)
    engine = make_engine(MODEL, spec, max_concurrency=1)
    request, checked = engine.submit([1, 2, 3], params), 0
    block = engine.policy.block
    for _ in range(50):
        engine.step()
        if request.draft:
            checked += 1
            corrected = request.draft.kind == "correction"
            # a correction knows its first token; an open branch has guessed the last one, unless it is loose
            alike = "linear" if corrected else "quadratic" if spec.startswith("quadratic") else "ar-row"
            fresh = make_engine(MODEL, f"{alike}:{block}", max_concurrency=1)
            again = fresh.submit(request.tokens if corrected else request.tokens[:-1], params)
            fresh.step()
            assert (again.tokens, again.draft.tokens) == (request.tokens, request.draft.tokens)
    assert checked == sum(request.stats.branches_reused.values()) > 5


def test_step_records_add_up():
    engine, _, records = finished("overlap:8:1", 6)
    assert [r.index for r in records] == list(range(len(records)))
    for record in records:
        assert sum(record.phases.values()) == pytest.approx(record.seconds, rel=1e-6)
        assert 0 <= record.draft_rows + record.prefill_rows <= record.rows
    assert 0 < engine.stats.share_outside_forward < 1


def test_aborted_requests_are_counted_with_what_they_kept():
    engine = make_engine(MODEL, "linear:4")
    request = engine.submit([1, 2], SamplingParams(max_new_tokens=50))
    for _ in range(6):
        engine.step()
    engine.abort(request)
    drain(engine)
    assert engine.stats.finished == {"abort": 1}
    assert engine.stats.requests.completion_tokens == request.generated > 0
