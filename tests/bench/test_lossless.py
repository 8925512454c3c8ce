"""The audit: silent in float32, loud about a planted divergence, lenient only where two tokens are nearly tied."""

import dataclasses

import pytest
import torch

import recguide.engine.drawing as drawing_module
import recguide.engine.engine as engine_module
from recguide.bench import lossless
from recguide.bench.lossless import Audit, Divergence, audit, next_logits
from recguide.engine.accept import accepted_length
from recguide.engine.sampling import SamplingParams
from tests.helpers import POLICY_SPECS, SAMPLERS, make_engine, small_model, small_weights

MODEL = small_model()
PROMPTS = [[(3 * i + j) % 13 for j in range(1 + i)] for i in range(8)]
ONE_OF_EACH = ("linear:4", "ar-row:4", "quadratic:4", "window:2:32", "overlap:4:0.9")
SHORT = {"max_new_tokens": 24, "eos_ids": ()}


def params(**changes):
    return [SamplingParams(**(SHORT | {"seed": i} | changes)) for i in range(len(PROMPTS))]


def check(policies, model=MODEL, **changes) -> list[Audit]:
    return audit(model, PROMPTS, policies, params(**changes), concurrency=4, max_context=128)


@pytest.mark.parametrize(
    ("sampler", "policies"), [("greedy", POLICY_SPECS), ("warm", ONE_OF_EACH), ("all", ONE_OF_EACH[-2:])]
)
def test_float32_has_no_divergence(sampler, policies):
    audits = check(policies, **SAMPLERS[sampler])
    assert [a.policy for a in audits] == list(policies)
    assert [a.texts for a in audits] == [8] * len(policies)
    assert [a.divergences for a in audits] == [[]] * len(policies)
    assert all(a.explained for a in audits)


def test_every_policy_and_text_is_announced():
    told = []
    audit(
        MODEL,
        PROMPTS[:2],
        ["linear:4", "window"],
        params()[:2],
        max_context=128,
        on_policy=told.append,
        on_text=lambda: told.append("text"),
    )
    assert told == [word for policy in ("ar", "linear:4", "window") for word in (policy, "text", "text")]


def accept_one_more(drafts, drawn):
    return min(len(drafts), accepted_length(drafts, drawn) + 1)


@pytest.mark.parametrize("sampler", ["greedy", "warm", "greedy_penalty"])
def test_a_draft_accepted_wrongly_is_found_and_not_called_a_tie(monkeypatch, sampler):
    expected = make_engine(MODEL, max_concurrency=1).generate(PROMPTS, params(**SAMPLERS[sampler]))
    monkeypatch.setattr(engine_module, "accepted_length", accept_one_more)
    (found,) = check(["linear:4"], **SAMPLERS[sampler])
    assert found.divergences
    assert not found.explained
    for d in found.divergences:
        assert d.policy == "linear:4"
        assert expected[d.prompt].output[d.position] == d.expected != d.found
        assert not d.near_tie
        assert d.gap > 1000 * d.tolerance


def swap(monkeypatch, model, policy, one, other):
    """While ``policy`` runs, every draw of ``one`` becomes ``other``."""
    plain = drawing_module.draw

    def draw(logits, rows):
        draws = plain(logits, rows)
        if current[0] == policy:
            draws.tokens = [other if token == one else token for token in draws.tokens]
        return draws

    current = ["ar"]
    monkeypatch.setattr(drawing_module, "draw", draw)
    return lambda spec: current.__setitem__(0, spec)


def twins(size):
    """A model whose token 12 has the logits of its most frequent token, ``size`` of a part smaller."""
    weights = small_weights(seed=1)
    plain = small_model(weights=weights, rank=0)
    outputs = make_engine(plain).generate(PROMPTS, params())
    tokens = [token for request in outputs for token in request.output]
    best = max(set(tokens) - {12}, key=tokens.count)
    weights["lm_head.weight"][12] = weights["lm_head.weight"][best] * (1 - size)
    return small_model(weights=weights, rank=0), best


@pytest.mark.parametrize(("size", "tie"), [(1e-7, True), (0.05, False)])
def test_only_a_divergence_of_the_size_of_rounding_is_a_near_tie(monkeypatch, size, tie):
    model, best = twins(size)
    announce = swap(monkeypatch, model, "linear:4", best, 12)
    (found,) = audit(model, PROMPTS, ["linear:4"], params(), concurrency=4, max_context=128, on_policy=announce)
    planted = [d for d in found.divergences if (d.expected, d.found) == (best, 12)]
    assert planted
    assert all(d.near_tie is tie for d in planted)
    assert found.explained is tie


def divergence(gap, tolerance):
    return Divergence(policy="x", prompt=0, position=1, expected=2, found=3, gap=gap, tolerance=tolerance)


def test_one_unexplained_divergence_is_enough():
    small, large = divergence(0.1, 0.2), divergence(0.3, 0.2)
    assert small.near_tie and not large.near_tie
    assert Audit(policy="x", texts=2, divergences=[small]).explained
    assert not Audit(policy="x", texts=2, divergences=[small, large]).explained
    assert not divergence(float("nan"), 0.2).near_tie
    assert not divergence(float("inf"), 0.2).near_tie


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_scores_are_those_the_engine_draws_from(sampler):
    """The token of ar is the best of ``_scores`` at every place."""
    p = SamplingParams(**(SHORT | {"seed": 3} | SAMPLERS[sampler]))
    prompt = PROMPTS[4]
    output = make_engine(MODEL, max_concurrency=1).generate([prompt], p)[0].output
    for place, token in enumerate(output):
        scores, tolerance = lossless._scores(MODEL, prompt + output[:place], p)
        assert int(scores.argmax()) == token
        assert 0 < tolerance < 1e-3


def test_next_logits_equal_a_forward_of_the_engine():
    request = make_engine(MODEL, max_concurrency=1).generate([PROMPTS[3]], SamplingParams(max_new_tokens=1))[0]
    logits = next_logits(MODEL, PROMPTS[3])
    assert logits.shape == (13,)
    assert int(logits.argmax()) == request.output[0]


def test_tolerance_follows_the_dtype_and_the_temperature():
    model = small_model()
    cold = lossless._scores(model, [1, 2], SamplingParams())[1]
    warm = lossless._scores(model, [1, 2], SamplingParams(temperature=0.5))[1]
    assert warm == pytest.approx(2 * cold)
    largest = float(next_logits(model, [1, 2]).abs().max())
    assert cold == pytest.approx(lossless.NEAR_TIE_STEPS * torch.finfo(torch.float32).eps * largest)


@pytest.mark.parametrize("earlier", ["ar", "linear:4"])
def test_a_text_that_ends_too_early_is_an_unexplained_divergence(monkeypatch, earlier):
    """One text is a prefix of the other: there is no pair of tokens to compare, and no tie."""
    plain, current = engine_module._cut, ["ar"]

    def cut(request, tokens):
        kept, reason = plain(request, tokens)
        early = current[0] == earlier and request.generated + len(kept) >= 6
        return kept, "length" if early else reason

    monkeypatch.setattr(engine_module, "_cut", cut)
    (found,) = audit(
        MODEL,
        PROMPTS,
        ["linear:4"],
        params(),
        concurrency=4,
        max_context=128,
        on_policy=lambda spec: current.__setitem__(0, spec),
    )
    assert len(found.divergences) == 8
    assert not found.explained


def test_a_request_that_failed_is_not_an_equal_text():
    """With logits that are not finite nothing is written by anyone, which is no proof of anything."""
    weights = small_weights()
    weights["model.norm.weight"].fill_(float("nan"))
    try:
        audits = check(["linear:4"], small_model(weights=weights))
    except ValueError as fault:
        assert "not finite" in str(fault)
    else:
        assert not all(a.explained for a in audits)


def test_divergences_of_bfloat16_are_near_ties():
    """The small model in bfloat16: whatever diverges is explained."""
    from recguide.models.backbone import Backbone

    weights = {name: value.bfloat16() for name, value in small_weights(seed=2).items()}
    model = dataclasses.replace(small_model(seed=2), backbone=Backbone(MODEL.config, weights))
    for found in check(["linear:8", "quadratic:4", "overlap:8:1"], model):
        assert found.explained, found.divergences
