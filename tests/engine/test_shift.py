"""The shifted draft convention (DESIGN section 6, ``draft_shift`` 1): every row predicts the position behind it."""

import pytest

from recguide.engine.plan import AR, Branch, RequestPlan, clamp
from recguide.engine.request import Draft, Request
from recguide.engine.sampling import SamplingParams
from recguide.models.adapter import load_adapter
from recguide.policies import parse_policy
from tests.helpers import (
    POLICY_SPECS,
    SAMPLERS,
    SMALL,
    assert_clean,
    assert_counts_agree,
    drain,
    make_engine,
    mixed_jobs,
    random_adapter,
    run,
    small_model,
)

MODEL = small_model(shift=1)
MASKS_ONLY = small_model(rank=0)
MASKS_ONLY.adapter = random_adapter(MASKS_ONLY, shift=1, adapt_tokens=False)
MASKS_ONLY.adapter.mask_embedding[0] = 1.0
PLAIN = small_model(rank=0)
JOBS = mixed_jobs(12)
EXPECTED = [make_engine(PLAIN).generate([prompt], params)[0] for prompt, params in JOBS]


@pytest.mark.parametrize("model", [MODEL, MASKS_ONLY], ids=["blocks", "masks only"])
@pytest.mark.parametrize("spec", POLICY_SPECS)
def test_every_policy_writes_the_text_of_ar(spec, model):
    engine = make_engine(model, spec)
    requests = engine.generate([p for p, _ in JOBS], [q for _, q in JOBS])
    assert [r.output for r in requests] == [r.output for r in EXPECTED]
    assert [r.finish_reason for r in requests] == [r.finish_reason for r in EXPECTED]
    for request in requests:
        assert_counts_agree(request)
    assert_clean(engine)


@pytest.mark.parametrize("model", [MODEL, MASKS_ONLY], ids=["blocks", "masks only"])
def test_policies_in_turn_while_running(model):
    engine = make_engine(model, "ar", concurrency=5)
    requests = [engine.submit(*job) for job in JOBS]
    for i in range(400):
        engine.set_policy(POLICY_SPECS[(7 * i) % len(POLICY_SPECS)])
        engine.step()
    drain(engine)
    assert [r.output for r in requests] == [r.output for r in EXPECTED]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_an_adapters_change_the_seeds_row_drafts_what_ar_writes(sampler):
    """A block of the seed alone, factors of zero: the first draft is the verifier's own next token, always accepted."""
    model = small_model(rank=0)
    model.adapter = random_adapter(model, size=0.0, shift=1)
    request = run(model, "linear:2", [1, 2, 3], max_new_tokens=40, **SAMPLERS[sampler])
    assert request.output == run(PLAIN, "ar", [1, 2, 3], max_new_tokens=40, **SAMPLERS[sampler]).output
    if "repetition_penalty" not in SAMPLERS[sampler]:  # drafts do not see each other's tokens for it
        assert set(request.accepted_history) == {(1, 1)}
        assert request.stats.tokens_per_forward == 1.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_where_known_tokens_take_the_plain_weights_the_first_draft_is_the_verifiers_own_token(temperature):
    """Whatever the adapter does to the masks."""
    request = run(MASKS_ONLY, "linear:5", [1, 2, 3], max_new_tokens=60, temperature=temperature)
    assert request.output == run(PLAIN, "ar", [1, 2, 3], max_new_tokens=60, temperature=temperature).output
    assert all(accepted >= 1 for _, accepted in request.accepted_history)
    assert len({accepted for _, accepted in request.accepted_history}) > 1


def planned(spec, draft=None):
    request = Request(0, [1, 2, 7], SamplingParams(seed=0), frozenset(), 100)
    request.draft, request.draft_shift = draft, 1
    return parse_policy(spec).plan([request])[0]


DRAFT = Draft([4, 5, 6], "draft", [0.9, 0.6, 0.5], [0.8, 0.3, 0.1], [9, 8, 10])


def test_blocks_draft_as_many_tokens_as_unshifted_ones_with_one_mask_less():
    assert planned("linear:8") == RequestPlan(None, (Branch(0, 7, 6, shift=1),))
    assert planned("ar-row:8") == RequestPlan(0, (Branch(1, None, 7, shift=1),))
    assert planned("quadratic:4", DRAFT).branches[1] == Branch(2, None, 3, loose=True, shift=1)
    overlapped = planned("overlap:8:0.5", DRAFT)
    assert overlapped.branches == tuple(Branch(place, None, 7, shift=1) for place in (2, 3, 4))
    for spec in ("linear:8", "ar-row:8"):
        assert planned(spec).branches[0].drafts == 7


@pytest.mark.parametrize("spec", ["linear:1", "ar-row:1", "quadratic:1", "overlap:1"])
def test_a_block_of_one_is_plain_ar(spec):
    assert clamp(planned(spec), 0, 50) == AR
    assert clamp(planned(spec, DRAFT), 3, 50).branches == ()


@pytest.mark.parametrize("remaining", range(1, 9))
@pytest.mark.parametrize("branch", [Branch(0, 7, 4, shift=1), Branch(2, 7, 4, shift=1), Branch(2, None, 5, shift=1)])
def test_no_row_is_bought_that_could_not_commit_a_token(branch, remaining):
    verify = None if branch.parent == 0 else 3
    kept = clamp(RequestPlan(verify, (branch,)), 3, remaining).branches
    if kept:
        assert 1 <= kept[0].drafts <= remaining - 1 - branch.parent
    else:
        assert remaining - 1 - branch.parent < 1


def test_an_open_branch_is_usable_whatever_the_verifier_emits():
    request = run(MODEL, "ar-row:6", [1, 2, 3], max_new_tokens=60, temperature=0.8)
    stats = request.stats
    assert stats.branches_reused["continuation"] == stats.branches_drafted["continuation"] > 5


def test_the_convention_is_stored_with_the_adapter(tmp_path):
    MODEL.adapter.save(tmp_path, {})
    loaded = load_adapter(tmp_path, SMALL, MODEL.fingerprint)
    assert (loaded.config.draft_shift, loaded.config.adapt_tokens) == (1, True)
    MASKS_ONLY.adapter.save(tmp_path, {})
    assert load_adapter(tmp_path, SMALL, MASKS_ONLY.fingerprint).config == MASKS_ONLY.adapter.config
    assert (MODEL.draft_shift, PLAIN.draft_shift) == (1, 0)
    assert (MODEL.adapt_tokens, MASKS_ONLY.adapt_tokens, PLAIN.adapt_tokens) == (True, False, True)
