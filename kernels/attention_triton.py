"""Attention of a step's flat rows over the K/V cache, in Triton.

A program takes a tile of (row, query head) pairs of one request and one K/V head, so that the request's prefix is read
once for all of them, and walks over the keys with an online softmax. Few requests leave a GPU idle: then the keys are
split among programs, and a second kernel joins their parts. Nothing is padded to the longest request.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .backend import capability, interpreting, launching, processors
from .rows import StepRows

LOG2_E = 1.4426950408889634
TABLES = ["order_ptr", "starts_ptr", "slots_ptr", "bounds_ptr"]
FAR = tl.constexpr(2**30)  # beyond any key


@triton.jit
def _absorb(
    q, k_ptr, v_ptr, first, reach, limit, low, high, scale, m, total, acc,
    stride_token, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One block of keys into the running maximum, sum and output: m' = max(m, s), acc' = acc 2^(m-m') + 2^(s-m') v."""
    key, d = first + tl.arange(0, BLOCK_N), tl.arange(0, D)
    places = key.to(tl.int64)[:, None] * stride_token + d[None, :]
    there = (key < reach)[:, None] & (d < HEAD_DIM)[None, :]
    k = tl.load(k_ptr + places, mask=there, other=0.0)
    v = tl.load(v_ptr + places, mask=there, other=0.0)
    if WIDE:
        k, v = k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        own = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        scores = tl.where((key[None, :] < limit[:, None]) | own, scores, -float("inf"))
    best = tl.maximum(m, tl.max(scores, 1))
    base = tl.where(best == -float("inf"), 0.0, best)  # a row that has seen nothing yet stays at zero, not NaN
    p = tl.exp2(scores - base[:, None])
    fade = tl.exp2(m - base)
    acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return best, total * fade + tl.sum(p, 1), acc


# what changes from step to step must not make a kernel of its own
@triton.jit(do_not_specialize=["rows", "tiles"], do_not_specialize_on_alignment=TABLES)
def attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, parts_ptr, weights_ptr, order_ptr, starts_ptr, slots_ptr, bounds_ptr,
    rows, tiles, scale, stride_row, stride_head, stride_slot, stride_kv_head, stride_token,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[row, head] = softmax(q k^T * scale) v over the keys the row sees; ``scale`` holds log2(e).

    bounds [3, rows] = limit, low, high; order and starts list each request's rows. With SPLITS > 1 each program
    leaves its unnormalised output in parts [SPLITS, rows, HEADS, HEAD_DIM], its maximum and sum in weights [.., 2].
    """
    request, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    kv_head, split = tl.program_id(1), tl.program_id(2)
    start = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - start
    if tile * BLOCK_M >= count * GROUP:
        return
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    real = pair // GROUP < count
    row = tl.load(order_ptr + start + pair // GROUP, mask=real, other=0)
    head = kv_head * GROUP + pair % GROUP
    limit = tl.load(bounds_ptr + row, mask=real, other=0)
    low = tl.load(bounds_ptr + rows + row, mask=real, other=0)
    high = tl.load(bounds_ptr + 2 * rows + row, mask=real, other=0)

    # blocks of keys: the prefix up to the highest limit, then the rows' own segments; what lies between is not read
    causal, own = tl.max(limit), high > low
    reach = tl.maximum(causal, tl.max(tl.where(own, high, 0)))
    prefix = tl.cdiv(causal, BLOCK_N)
    skip = tl.maximum(tl.min(tl.where(own, low, FAR)) // BLOCK_N, prefix) - prefix
    blocks = prefix + tl.maximum(tl.cdiv(reach, BLOCK_N) - prefix - skip, 0)
    full = tl.min(tl.where(real, limit, FAR)) // BLOCK_N  # every row sees all of these
    begin, end = split * blocks // SPLITS, (split + 1) * blocks // SPLITS

    d = tl.arange(0, D)
    inside = real[:, None] & (d < HEAD_DIM)[None, :]
    spot = row.to(tl.int64) * stride_row + head * stride_head
    q = tl.load(q_ptr + spot[:, None] + d[None, :], mask=inside, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    cache = tl.load(slots_ptr + request).to(tl.int64) * stride_slot + kv_head.to(tl.int64) * stride_kv_head
    k_ptr += cache
    v_ptr += cache
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for block in range(begin, tl.minimum(end, full)):
        m, total, acc = _absorb(
            q, k_ptr, v_ptr, block * BLOCK_N, reach, limit, low, high, scale, m, total, acc,
            stride_token, HEAD_DIM, D, BLOCK_N, False, WIDE,
        )  # fmt: skip
    for block in range(tl.maximum(begin, full), end):
        shifted = block + tl.where(block < prefix, 0, skip)
        m, total, acc = _absorb(
            q, k_ptr, v_ptr, shifted * BLOCK_N, reach, limit, low, high, scale, m, total, acc,
            stride_token, HEAD_DIM, D, BLOCK_N, True, WIDE,
        )  # fmt: skip

    place = row.to(tl.int64) * HEADS + head
    if SPLITS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out = out_ptr + place[:, None] * HEAD_DIM + d[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        place += split.to(tl.int64) * rows * HEADS
        tl.store(parts_ptr + place[:, None] * HEAD_DIM + d[None, :], acc, mask=inside)
        tl.store(weights_ptr + 2 * place, m, mask=real)
        tl.store(weights_ptr + 2 * place + 1, total, mask=real)


@triton.jit(do_not_specialize=["pairs"])
def attention_join_kernel(
    out_ptr, parts_ptr, weights_ptr, pairs, HEAD_DIM: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr
):
    """out[pair] = sum_s 2^(m_s - m) parts_s / sum_s 2^(m_s - m) total_s over the splits of one (row, head)."""
    pair, split, d = tl.program_id(0).to(tl.int64), tl.arange(0, SPLITS), tl.arange(0, D)
    place = split.to(tl.int64) * pairs + pair
    m = tl.load(weights_ptr + 2 * place)
    best = tl.max(m)
    weight = tl.exp2(m - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weight * tl.load(weights_ptr + 2 * place + 1))
    inside = d < HEAD_DIM
    parts = tl.load(parts_ptr + place[:, None] * HEAD_DIM + d[None, :], mask=inside[None, :], other=0.0)
    joined = tl.sum(weight[:, None] * parts, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + pair * HEAD_DIM + d, joined.to(out_ptr.dtype.element_ty), mask=inside)


class Tiling(NamedTuple):
    """How the work is cut: pairs and keys a tile, warps and stages, and programs that share a request's keys."""

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 2
    splits: int = 1


def tile_for(pairs: int, head_dim: int, bytes_each: int, major: int) -> Tiling:
    """A tile for the largest request's (row, head) pairs, by head size, bytes of a number and compute capability.

    One choice from the shapes alone, so that nothing is tried out while requests wait. Each fits in registers and
    shared memory (``compiled``).
    """
    most = (128 if head_dim <= 128 else 64) if bytes_each == 2 else (32 if head_dim <= 128 else 16)
    block_m = min(max(16, triton.next_power_of_2(pairs)), most)
    if bytes_each == 4:
        return Tiling(block_m, 16, 4, 2) if head_dim <= 128 else Tiling(block_m, 16, 2, 1)
    if head_dim > 128:
        return Tiling(block_m, 32, 8 if block_m == 64 else 4, 1)
    block_n = 32 if major < 9 and block_m >= 64 else 64  # before Hopper, operands of products take registers
    return Tiling(block_m, block_n, {16: 2, 128: 8}.get(block_m, 4), 2)


def splits_for(step: StepRows, tile: Tiling, group_size: int, kv_heads: int, processors: int) -> int:
    """Programs that share a request's keys: two waves of them, two blocks of keys each or more, a power of two."""
    programs = sum(triton.cdiv(len(rows) * group_size, tile.block_m) for rows in step.owned) * kv_heads
    most = min(2 * processors // programs, max(step.keys) // (2 * tile.block_n), 32)
    return 1 << (most.bit_length() - 1) if most > 1 else 1


class TritonAttention:
    """``step_attention`` for Triton: the step's tables on the device, and the launch. See ``Tiling``."""

    def __init__(self, step: StepRows, group_size: int, scale: float, like: Tensor, tiling: Tiling | None = None):
        self._step, self._group, self._scale, self.tiling = step, group_size, scale * LOG2_E, tiling
        order = [row for rows in step.owned for row in rows]
        starts = [0, *accumulate(map(len, step.owned))]
        columns = (order, starts, step.slots, step.limits + step.lows + step.highs)
        table = torch.tensor([x for column in columns for x in column], dtype=torch.int32)
        self._tables = table.to(like.device, non_blocking=True).split([len(column) for column in columns])

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[rows, heads * head_dim]; q's last dimension and those of k and v [.., tokens, head_dim] must be dense."""
        rows, heads, head_dim = q.shape
        assert q.stride(2) == k.stride(3) == 1 and k.stride() == v.stride()
        cut = self.tiling = self.tiling or self._choose(k)
        out = q.new_empty(rows, heads * head_dim)
        parts = weights = out
        if cut.splits > 1:
            parts = torch.empty(cut.splits, rows, heads, head_dim, dtype=torch.float32, device=q.device)
            weights = torch.empty(cut.splits, rows, heads, 2, dtype=torch.float32, device=q.device)
        tiles = triton.cdiv(max(map(len, self._step.owned)) * self._group, cut.block_m)
        grid = (len(self._step.slots) * tiles, k.shape[1], cut.splits)
        width = max(16, triton.next_power_of_2(head_dim))
        # the interpreter computes bfloat16 wrongly without a word; a GPU multiplies it as it is
        wide = q.dtype == torch.float32 or (q.dtype == torch.bfloat16 and interpreting())
        with launching(q.device):
            attention_fwd_kernel[grid](
                q, k, v, out, parts, weights, *self._tables,
                rows, tiles, self._scale, *q.stride()[:2], *k.stride()[:3],
                heads, self._group, head_dim, width, cut.block_m, cut.block_n, cut.splits, wide,
                num_warps=cut.warps, num_stages=cut.stages,
            )  # fmt: skip
            if cut.splits > 1:
                attention_join_kernel[(rows * heads,)](
                    out, parts, weights, rows * heads, head_dim, width, cut.splits, num_warps=1
                )
        return out

    def _choose(self, k: Tensor) -> Tiling:
        """The same for every layer of a step."""
        kv_heads, head_dim = k.shape[1], k.shape[3]
        pairs = max(map(len, self._step.owned)) * self._group
        tile = tile_for(pairs, head_dim, k.element_size(), capability(k.device))
        return tile._replace(splits=splits_for(self._step, tile, self._group, kv_heads, processors(k.device)))
