"""Attention in Triton against softmax in float64 over the keys that each row sees, one row at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recguide.kernels.attention_triton import Tiling, TritonAttention, splits_for, tile_for
from recguide.kernels.rows import StepRows

from tests.kernels.interpreted.guards import LIMIT, guarded, inside_poison, relative_error
from tests.kernels.steps import steps

SLOTS = 5


def tensors(step, kv_heads, group, width, dtype, seed):
    """q between other projections' heads, and caches that hold NaN wherever the step has no key."""
    generator = torch.Generator().manual_seed(seed)
    heads = kv_heads * group
    projected = torch.full((step.total, heads + 2, width), float("nan"), dtype=dtype)
    q = inside_poison(projected)[:, 1:-1]
    q.copy_(torch.randn(q.shape, generator=generator))
    caches = []
    for _ in "kv":
        cache = torch.full((SLOTS, kv_heads, max(step.keys) + 3, width), float("nan"), dtype=dtype)
        for slot, keys in zip(step.slots, step.keys, strict=True):
            cache[slot, :, :keys] = torch.randn(kv_heads, keys, width, generator=generator)
        caches.append(cache)
    return q, *caches


def exact(step, q, k, v, scale):
    """[rows, heads, width] in float64; a row that sees nothing is zero."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for slot, rows in zip(step.slots, step.owned, strict=True):
        for row in rows:
            seen = [*range(step.limits[row])]
            seen += [key for key in range(step.lows[row], step.highs[row]) if key >= step.limits[row]]
            if not seen:
                continue
            group = q.shape[1] // k.shape[1]
            keys, values = (x[slot, :, seen].double().repeat_interleave(group, 0) for x in (k, v))
            scores = torch.einsum("hd,hkd->hk", q[row].double(), keys) * scale
            out[row] = torch.einsum("hk,hkd->hd", scores.softmax(-1), values)
    return out


def check(step, kv_heads, group, width, dtype, tiling=None, seed=0):
    q, k, v = tensors(step, kv_heads, group, width, dtype, seed)
    scale = width**-0.5
    with guarded():
        made = TritonAttention(step, group, scale, k, tiling)(q, k, v)
    assert made.dtype == dtype
    assert relative_error(made.view(q.shape), exact(step, q, k, v, scale)) < LIMIT[dtype]


TILINGS = st.builds(
    Tiling, st.sampled_from([16, 32, 64]), st.sampled_from([16, 32]), st.just(4), st.just(1), st.sampled_from([1, 2, 8])
)
DTYPE = st.sampled_from([torch.float32, torch.float16])


@given(steps(), st.integers(1, 2), st.integers(1, 4), st.sampled_from([16, 24, 64]), DTYPE, TILINGS, st.integers(0, 99))
@settings(max_examples=50)
def test_equals_softmax_in_float64(step, kv_heads, group, width, dtype, tiling, seed):
    check(step, kv_heads, group, width, dtype, tiling, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [80, 128, 256])
def test_wide_heads_with_the_tiles_that_are_chosen(width, dtype):
    step = StepRows([3, 1], [[0, 1, 3], [2]], [33, 6], [31, 32, 6, 31], [0, 0, 0, 32], [0, 0, 0, 33])
    check(step, 1, 5, width, dtype)


@pytest.mark.parametrize("splits", [1, 4])
def test_causal_prefill(splits):
    rows = 63
    step = StepRows([2], [list(range(rows))], [rows], list(range(1, rows + 1)), [0] * rows, [0] * rows)
    check(step, 2, 3, 16, torch.float32, Tiling(32, 16, splits=splits))


@pytest.mark.parametrize("splits", [1, 4])
def test_rows_that_see_nothing_are_zero_and_others_as_ever(splits):
    step = StepRows([0], [[0, 1, 2]], [20], [0, 18, 0], [0, 0, 18], [0, 0, 20])
    check(step, 2, 2, 16, torch.float32, Tiling(16, 16, splits=splits))


def test_keys_between_the_prefix_and_a_far_segment_are_not_read():
    step = StepRows([0], [[0]], [90], [3], [80], [90])
    q, k, v = tensors(step, 1, 1, 16, torch.float32, 0)
    k[:, :, 16:64] = v[:, :, 16:64] = float("nan")
    made = TritonAttention(step, 1, 0.25, k, Tiling(16, 16))(q, k, v)
    assert relative_error(made.view(q.shape), exact(step, q, k, v, 0.25)) < 1e-5


def test_bfloat16_is_widened_before_the_interpreter_computes_with_it():
    step = StepRows([0], [[0, 1]], [20], [19, 20], [0, 0], [0, 0])
    q, k, v = tensors(step, 2, 2, 16, torch.bfloat16, 0)
    made = TritonAttention(step, 2, 0.25, k)(q, k, v)
    assert relative_error(made.view(q.shape), exact(step, q, k, v, 0.25)) < 1e-2


def test_few_requests_share_their_keys_among_programs():
    one = StepRows([0], [[0]], [4096], [4096], [0], [0])
    tile = tile_for(4, 128, 2, 9)
    assert splits_for(one, tile, 4, 8, 132) == 32
    assert splits_for(one, tile, 4, 8, 1) == 1
    many = StepRows(list(range(128)), [[i] for i in range(128)], [4096] * 128, [4096] * 128, [0] * 128, [0] * 128)
    assert splits_for(many, tile, 4, 8, 132) == 1
