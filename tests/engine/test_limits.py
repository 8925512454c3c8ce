"""R5: EOS, stop strings, budget and context cut inside an accepted block (T1, T3, T7, T8; R4: masks)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from tests.helpers import (
    POLICY_SPECS,
    SMALL,
    agreeing_model,
    assert_clean,
    assert_counts_agree,
    foresight,
    make_engine,
    run,
    small_model,
    small_weights,
)

MODEL = agreeing_model()
SPECS = ("ar", "linear:4", "linear:32", "ar-row:4", "window:2:8", "quadratic:4", "overlap:4:1")


def varied(count=40, **params):
    """A long varied text, the same from every row of the model."""
    return run(MODEL, "ar", [1, 2], max_new_tokens=count, temperature=1.0, **params).output


TEXT = varied()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_t03_budget_is_exact(spec, budget):
    request = run(MODEL, spec, [1, 2], max_new_tokens=budget, temperature=1.0)
    assert (request.output, request.finish_reason) == (TEXT[:budget], "length")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("room", [1, 2, 5, 9])
def test_t03_the_context_limit_cuts_as_exactly(spec, room):
    engine = make_engine(MODEL, spec, max_context=2 + room)
    request = engine.generate([[1, 2]], SamplingParams(max_new_tokens=200, temperature=1.0, seed=0))[0]
    assert (request.output, request.finish_reason) == (TEXT[:room], "length")
    assert_clean(engine)


@given(st.sampled_from(POLICY_SPECS), st.integers(1, 30), st.integers(1, 50), st.sampled_from([1, 3, 256]))
@settings(max_examples=25)
def test_t07_cached_tokens_are_all_but_the_seed(spec, prompt, budget, chunk):
    """After every step, at whatever place drafts were rejected: K/V of prompt + emitted[:-1]."""
    model = small_model()
    engine = make_engine(model, spec, prefill_chunk=chunk, max_concurrency=2)
    requests = [
        engine.submit([1 + i] * prompt, SamplingParams(max_new_tokens=budget, temperature=0.8, seed=i)) for i in (0, 1)
    ]
    while not engine.idle:
        engine.step()
        for request in engine.running:
            cached = engine._cache.lengths[request.slot]
            assert cached == len(request.tokens) - 1 if request.generated else cached < len(request.tokens)
    assert [r.generated for r in requests] == [budget, budget]


def test_t07_the_cache_holds_what_a_fresh_prefill_holds():
    model = small_model()
    engine = make_engine(model, "overlap:8:1", max_concurrency=1)
    request = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=60, temperature=0.8, seed=3))
    for _ in range(12):
        engine.step()
    length = engine._cache.lengths[request.slot]
    assert length > 10
    fresh = make_engine(model, max_concurrency=1)
    fresh.submit(request.tokens, SamplingParams(max_new_tokens=1))
    fresh._apply_commands()
    fresh._admit()
    fresh._forward(fresh._lay_out(fresh._plan(fresh.policy)))
    torch.testing.assert_close(engine._cache.k[:, 0, :, :length], fresh._cache.k[:, 0, :, :length], atol=1e-4, rtol=0)
    torch.testing.assert_close(engine._cache.v[:, 0, :, :length], fresh._cache.v[:, 0, :, :length], atol=1e-4, rtol=0)


def first_use(place):
    """A token of TEXT that stands at ``place`` and nowhere before, or None."""
    return TEXT[place] if TEXT[place] not in TEXT[:place] else None


@pytest.mark.parametrize("place", [i for i in range(len(TEXT)) if first_use(i) is not None])
@pytest.mark.parametrize("spec", SPECS)
def test_t08_eos_ends_the_text_and_is_its_last_token(spec, place):
    request = run(MODEL, spec, [1, 2], max_new_tokens=40, temperature=1.0, eos_ids=(first_use(place),))
    assert (request.output, request.finish_reason) == (TEXT[: place + 1], "eos")
    assert_counts_agree(request)


@pytest.mark.parametrize("index", range(9))
def test_t08_eos_at_every_index_of_a_block(index):
    """8 right drafts, EOS among them or as the bonus (index 8): nothing after it is kept."""
    reference = [3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4]
    reference[index] = 7
    model = scripted([1, *reference])
    engine = make_engine(model, foresight(reference, 8), max_concurrency=1)
    request = engine.generate([[1]], SamplingParams(max_new_tokens=40, eos_ids=(7,)))[0]
    assert (request.output, request.finish_reason) == (reference[: index + 1], "eos")
    assert engine.stats.steps == 1
    assert_counts_agree(request)
    assert_clean(engine)


def scripted(text, vocab=13):
    """A model whose greedy token at each position is ``text``'s: its logits are forced by position."""
    model = small_model(rank=0)
    backbone, plain = model.backbone, model.backbone.forward

    def forward(tokens, positions, attend, **rest):
        hidden = plain(tokens, positions, attend, **rest)
        places = (positions + 1).clamp(max=len(text) - 1)
        hidden[:, :vocab] = torch.nn.functional.one_hot(torch.tensor(text)[places], vocab).float() * 50
        hidden[:, vocab:] = 0
        return hidden

    backbone.forward = forward
    backbone.logits = lambda hidden: hidden[:, :vocab].clone()
    return model


def test_t08_eos_in_a_rejected_tail_does_not_stop():
    reference = run(small_model(), "ar", [1, 2, 3], max_new_tokens=24, temperature=0.8).output
    eos = next(t for t in range(13) if t not in reference)

    def draft(request):
        right = reference[request.generated : request.generated + 2]
        return [*right, (reference[min(request.generated + 2, 23)] + 1) % 13, eos, eos]

    policy = foresight(reference, 4)
    policy.draft = draft
    request = run(small_model(), policy, [1, 2, 3], max_new_tokens=24, temperature=0.8, eos_ids=(eos,))
    assert (request.output, request.finish_reason) == (reference, "length")


def test_t08_a_seed_that_is_eos_does_not_stop():
    """Only emitted tokens end a text: the prompt may end in EOS, as chat templates do."""
    eos = next(t for t in range(13) if t not in TEXT[:6])
    expected = run(MODEL, "ar", [1, eos], max_new_tokens=6, temperature=1.0).output
    request = run(MODEL, "linear:4", [1, eos], max_new_tokens=6, temperature=1.0, eos_ids=(eos,))
    assert (request.output, request.finish_reason) == (expected, "length")


def test_t08_the_first_of_several_eos_ids_ends():
    ids = {TEXT[i]: i for i in reversed(range(len(TEXT)))}
    late = sorted(ids, key=ids.get)[-3:]
    for spec in SPECS:
        request = run(MODEL, spec, [1, 2], max_new_tokens=40, temperature=1.0, eos_ids=tuple(late))
        assert request.output == TEXT[: ids[late[0]] + 1]


def test_eos_ids_come_from_the_model_unless_given():
    config = SMALL.__class__(**{**vars(SMALL), "eos_ids": (TEXT[3],)})
    model = agreeing_model(config=config)
    place = TEXT.index(TEXT[3])
    assert run(model, "linear:4", [1, 2], max_new_tokens=9, temperature=1.0).output == TEXT[: place + 1]
    assert run(model, "linear:4", [1, 2], max_new_tokens=9, temperature=1.0, eos_ids=()).output == TEXT[:9]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("start", [0, 2, 3, 4, 10])
def test_a_stop_string_is_found_across_block_borders(spec, start, length):
    """Tokens of the small model are control characters; the text ends before the match, the tokens with it."""
    stop = "".join(map(chr, TEXT[start : start + length]))
    whole = "".join(map(chr, TEXT))
    at = whole.find(stop)
    request = run(MODEL, spec, [1, 2], max_new_tokens=40, temperature=1.0, stop=("\x7f\x7f", stop))
    assert request.finish_reason == "stop"
    assert request.text(MODEL.tokenizer) == whole[:at]
    assert request.output == TEXT[: at + length]
    assert_counts_agree(request)


def test_the_earliest_of_several_stop_strings_wins_and_eos_before_it():
    first, second = chr(TEXT[5]) + chr(TEXT[6]), chr(TEXT[2]) + chr(TEXT[3])
    request = run(MODEL, "linear:32", [1, 2], max_new_tokens=40, temperature=1.0, stop=(first, second))
    assert request.text(MODEL.tokenizer) == "".join(map(chr, TEXT))[: "".join(map(chr, TEXT)).find(second)]
    eos = TEXT[1]
    request = run(MODEL, "linear:32", [1, 2], max_new_tokens=40, temperature=1.0, stop=(second,), eos_ids=(eos,))
    assert request.finish_reason == "eos"


@pytest.mark.parametrize("spec", ["ar", *POLICY_SPECS])
def test_t01_the_mask_token_is_never_emitted(spec):
    """A bias that makes the mask id the largest logit of every row: it is still never drafted nor emitted."""
    weights = small_weights()
    config = SMALL.__class__(**{**vars(SMALL), "mask_id": 5})
    model = small_model(config=config, weights=weights)
    rows = weights["lm_head.weight"]
    rows[5] = rows.abs().max() * 100
    forced = small_model(config=config, weights=weights)
    for each in (model, forced):
        engine = make_engine(each, spec, max_concurrency=1)
        request = engine.submit([1, 2, 5], SamplingParams(max_new_tokens=30, temperature=0.8, seed=1))
        while not engine.idle:
            engine.step()
            assert request.draft is None or 5 not in request.draft.tokens
        assert request.generated == 30
        assert 5 not in request.output


class TestBadInput:
    @pytest.mark.parametrize("prompt", ["", [], [13], [-1], [1.5], ["x"], [True, None]])
    def test_prompts(self, prompt):
        engine = make_engine(MODEL)
        with pytest.raises(RecGuideError, match=r"^prompt "):
            engine.submit(prompt)
        assert_clean(engine)

    def test_a_prompt_that_fills_the_context(self):
        engine = make_engine(MODEL, max_context=10)
        with pytest.raises(RecGuideError, match="10 tokens, the context holds 10"):
            engine.submit([1] * 10)
        assert engine.generate([[1] * 9], SamplingParams(max_new_tokens=5))[0].generated == 1

    @pytest.mark.parametrize(
        "settings",
        [
            {"max_concurrency": 0},
            {"prefill_chunk": 0},
            {"max_context": 1},
            {"max_context": 257},
            {"concurrency": 0},
            {"concurrency": 17},
            {"policy": "nonsense"},
        ],
    )
    def test_engine_settings(self, settings):
        with pytest.raises(RecGuideError) as caught:
            Engine(MODEL, **({"max_concurrency": 16, "max_context": 256} | settings))
        assert "\n" not in str(caught.value)

    def test_a_bad_prompt_in_a_list_leaves_none_of_the_others_queued(self):
        engine = make_engine(MODEL)
        with pytest.raises(RecGuideError):
            engine.generate([[1, 2], []], SamplingParams(max_new_tokens=5))
        assert_clean(engine)

    def test_a_failed_knob_leaves_the_old_one(self):
        engine = make_engine(MODEL, "linear:4", concurrency=3)
        for turn, value in ((engine.set_policy, "linear:0"), (engine.set_concurrency, 0)):
            with pytest.raises(RecGuideError):
                turn(value)
        assert (engine.policy.spec, engine.concurrency) == ("linear:4", 3)
