"""The attention reference against softmax in float64, written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recguide.kernels.attention import additive, attention, attention_to_train, fold_mask


def plain(q, k, v, blocked, scale):
    """One request, row and head at a time, over the visible keys only."""
    requests, rows, heads, _ = q.shape
    group = heads // k.shape[1]
    out = torch.empty(requests, rows, heads, v.shape[-1], dtype=torch.float64)
    for r in range(requests):
        for i in range(rows):
            sees = slice(None) if blocked is None else ~blocked[r, i]
            for h in range(heads):
                scores = k[r, h // group][sees].double() @ q[r, i, h].double() * scale
                out[r, i, h] = scores.softmax(0) @ v[r, h // group][sees].double()
    return out.flatten(2)


def tensors(requests, rows, kv_heads, group, keys, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(requests, rows, kv_heads * group, width, generator=generator)
    k, v = (torch.randn(requests, kv_heads, keys, width, generator=generator) for _ in "kv")
    blocked = torch.rand(requests, rows, keys, generator=generator) < 0.4
    blocked[..., 0] = False
    return q, k, v, blocked


SIZE = st.integers(1, 5)


@given(SIZE, SIZE, st.integers(1, 3), st.integers(1, 3), st.integers(1, 17), st.sampled_from([2, 6, 64]), st.booleans())
def test_equals_softmax_in_float64(requests, rows, kv_heads, group, keys, width, masked):
    q, k, v, blocked = tensors(requests, rows, kv_heads, group, keys, width)
    blocked = blocked if masked else None
    made = attention(q, k, v, fold_mask(blocked, group), width**-0.5)
    torch.testing.assert_close(made.double(), plain(q, k, v, blocked, width**-0.5), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_mask_of_the_last_keys_is_enough_where_all_see_the_others(requests):
    q, k, v, blocked = tensors(requests, 4, 2, 2, 9, 16)
    blocked[..., :5] = False
    whole, tail = (attention(q, k, v, fold_mask(mask, 2), 0.25) for mask in (blocked, blocked[..., 5:]))
    assert torch.equal(tail, whole)


@pytest.mark.parametrize("requests", [2, 3])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_blocked_key_may_hold_any_bits(requests, poison):
    q, k, v, blocked = tensors(requests, 4, 2, 2, 9, 16)
    blocked[..., 5:] = True
    expected = attention(q, k, v, fold_mask(blocked, 2), 0.25)
    k[:, :, 5:] = poison
    assert torch.equal(attention(q, k, v, fold_mask(blocked, 2), 0.25), expected)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_blocked_value_may_be_any_finite_number(requests):
    q, k, v, blocked = tensors(requests, 4, 2, 2, 9, 16)
    blocked[..., 5:] = True
    expected = attention(q, k, v, fold_mask(blocked, 2), 0.25)
    v[:, :, 5:] = 3e38
    assert torch.equal(attention(q, k, v, fold_mask(blocked, 2), 0.25), expected)


def test_bfloat16_stays_near():
    q, k, v, blocked = (x.bfloat16() if x.is_floating_point() else x for x in tensors(3, 5, 2, 3, 33, 64))
    made = attention(q, k, v, fold_mask(blocked, 3), 0.125)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.double(), plain(q, k, v, blocked, 0.125), atol=0.03, rtol=0.03)


def test_the_folded_mask_repeats_every_row_for_each_query_head():
    blocked = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    folded = fold_mask(blocked, 4)
    assert folded.shape == (2, 1, 12, 7)
    for head in range(4):
        assert torch.equal(folded[:, 0, 3 * head : 3 * head + 3], blocked)
    assert fold_mask(None, 4) is None


@given(SIZE, st.integers(1, 3), st.integers(1, 3), st.integers(1, 17), st.sampled_from([2, 6, 64]))
def test_training_sees_the_same_values_and_the_fused_operations_gradients(rows, kv_heads, group, keys, width):
    q, k, v, blocked = tensors(1, rows, kv_heads, group, keys, width)
    mask = additive(fold_mask(blocked, group), q.dtype, keys)
    generator = torch.Generator().manual_seed(1)
    towards = torch.randn(rows, kv_heads * group * width, generator=generator)

    def gradients(made, *inputs):
        return torch.autograd.grad((made * towards).sum(), inputs)

    one = [x[0].requires_grad_() for x in (q, k, v)]
    trained = attention_to_train(*one, mask[0], width**-0.5)
    torch.testing.assert_close(trained[None].double(), plain(q, k, v, blocked, width**-0.5), atol=1e-5, rtol=1e-5)
    fused = attention(*(x[None] for x in one), mask, width**-0.5)[0]
    for ours, theirs in zip(gradients(trained, *one), gradients(fused, *one), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
