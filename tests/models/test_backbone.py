"""The C kernels' single call for all layers against a call for each operation: the same bits, in what it returns and in
the cache."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recguide.kernels import native
from recguide.kernels.backend import choose

from recguide.engine.cache import KVCache, StepAttention
from recguide.engine.layout import Segment, build_layout
from recguide.engine.plan import Branch
from tests.helpers import SMALL, random_adapter, small_model, small_weights
from tests.kernels.steps import segments

CPU = torch.device("cpu")
here = pytest.mark.skipif(not choose(CPU).native, reason=f"no C kernels: {choose(CPU).reason}")
HEADS = dataclasses.replace(SMALL, hidden_size=64, head_dim=32, intermediate_size=96)
ALIKE = {"plain": None, "blocks": True, "masks only": False}


def model(config, adapt_tokens):
    weights = {name: value.bfloat16() for name, value in small_weights(config, 2).items()}
    made = small_model(config=config, weights=weights, rank=0)
    if adapt_tokens is not None:
        made.adapter = random_adapter(made, rank=6, size=0.2, adapt_tokens=adapt_tokens)
    return made


MODELS = {name: model(HEADS, adapted) for name, adapted in ALIKE.items()}
OWN_MASK = model(dataclasses.replace(HEADS, mask_id=7), True)


def forward(model, segments, whole, adapted=True):
    """Hidden states of a step, and the caches behind it; ``whole``: in one call, where that can be."""
    config = model.config
    cache = KVCache(config, 4, 64, 64, torch.bfloat16, CPU)
    cache.k.normal_(generator=torch.Generator().manual_seed(5))
    cache.v.normal_(generator=torch.Generator().manual_seed(6))
    layout = build_layout(segments, config.mask_id, adapt_tokens=model.adapt_tokens)
    with torch.no_grad():
        attention = StepAttention(cache, layout, config)
        assert attention.native is not None
        hidden = model.backbone.forward(
            layout.tokens,
            layout.positions,
            attention if whole else lambda *given: attention(*given),
            first_draft_row=layout.first_draft_row if adapted else layout.rows,
            mask_rows=layout.mask_rows,
            adapter=model.fused_adapter if model.adapter else None,
        )
    return hidden, cache.k, cache.v


def assert_alike(model, segments, **how):
    for made, expected in zip(
        forward(model, segments, True, **how), forward(model, segments, False, **how), strict=True
    ):
        assert torch.equal(made, expected)


@here
@pytest.mark.parametrize("name", MODELS)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).flatmap(lambda s: st.tuples(*map(segments, s))))
def test_all_layers_in_one_call_give_the_bits_of_single_calls(name, step):
    if name == "plain":  # nothing to draft with
        step = [dataclasses.replace(s, branches=()) for s in step if s.trunk]
    if step:
        assert_alike(MODELS[name], list(step))


@here
@given(st.tuples(segments(0), segments(2)))
def test_the_same_for_a_mask_token_of_its_own_and_an_adapter_that_is_off(step):
    assert_alike(OWN_MASK, list(step))
    assert_alike(MODELS["blocks"], list(step), adapted=False)


@here
def test_the_single_call_is_taken(monkeypatch):
    """And with it the adapter of the moment, when it is changed."""
    step = [Segment(1, 9, (3, 5), 2, 0, (Branch(2, None, 3), Branch(1, 4, 2)))]
    calls = []
    original = native.decode
    monkeypatch.setattr(native, "decode", lambda *given: calls.append(given[0]) or original(*given))
    made = model(HEADS, True)
    first = forward(made, step, True)[0]
    made.adapter = random_adapter(made, rank=6, size=0.2, seed=9)
    second = forward(made, step, True)[0]
    assert len(calls) == 2 and not torch.equal(first, second)
    assert torch.equal(second, forward(made, step, False)[0])
