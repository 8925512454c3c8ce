"""Row-selective low-rank products in Triton: one kernel down to the rank, one up and into the output.

The inner dimension of the first product is split among programs where rows are few; the second adds their parts, in a
fixed order, so that a result does not depend on the schedule.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .backend import interpreting, launching, processors

BLOCK_R, BLOCK_N = 32, 64
BLOCK_K = {2: 128, 4: 32}  # by bytes of a number
WARPS, STAGES = 4, 2


@triton.jit(do_not_specialize=["rows", "steps"])
def adapter_down_kernel(
    x_ptr, down_ptr, parts_ptr, rows, inputs, rank, stride_x, stride_down, steps,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """parts[s] [rows, rank] = x[:, its inputs] down[:, its inputs]^T; a part takes ``steps`` blocks of inputs."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    part = tl.program_id(2)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    x_rows = x_ptr + row.to(tl.int64)[:, None] * stride_x
    down_rows = down_ptr + r.to(tl.int64)[:, None] * stride_down
    for step in range(part * steps, (part + 1) * steps):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        x = tl.load(x_rows + k[None, :], mask=(row < rows)[:, None] & (k < inputs)[None, :], other=0.0)
        down = tl.load(down_rows + k[None, :], mask=(r < rank)[:, None] & (k < inputs)[None, :], other=0.0)
        if WIDE:
            x, down = x.to(tl.float32), down.to(tl.float32)
        acc += tl.dot(x, tl.trans(down), input_precision="ieee")
    place = (part.to(tl.int64) * rows + row)[:, None] * rank + r[None, :]
    tl.store(parts_ptr + place, acc, mask=(row < rows)[:, None] & (r < rank)[None, :])


@triton.jit(do_not_specialize=["rows", "parts"])
def adapter_up_kernel(
    parts_ptr, up_ptr, out_ptr, rows, rank, outputs, stride_up, stride_out, parts,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] += (sum of parts [rows, rank]) up^T."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < rows)[:, None] & (n < outputs)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, rank, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        there = (row < rows)[:, None] & (r < rank)[None, :]
        low = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for part in range(parts):
            low += tl.load(parts_ptr + (part * rows + row).to(tl.int64)[:, None] * rank + r[None, :], there, 0.0)
        up_place = n.to(tl.int64)[:, None] * stride_up + r[None, :]
        up = tl.load(up_ptr + up_place, mask=(n < outputs)[:, None] & (r < rank)[None, :], other=0.0)
        if WIDE:
            up = up.to(tl.float32)
        acc += tl.dot(low.to(up.dtype), tl.trans(up), input_precision="ieee")
    place = out_ptr + row.to(tl.int64)[:, None] * stride_out + n[None, :]
    acc += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def add_low_rank_triton(out: Tensor, x: Tensor, down: Tensor, up: Tensor, first: int) -> Tensor:
    """``add_low_rank`` in Triton; the last dimension of every tensor must be dense."""
    assert out.stride(1) == x.stride(1) == down.stride(1) == up.stride(1) == 1
    served, read = out[first:], x[first:]
    rows, (rank, inputs) = len(served), down.shape
    if not rows or not rank:
        return out
    block_m = min(max(16, triton.next_power_of_2(rows)), 64)
    tiles, slices = triton.cdiv(rows, block_m), triton.cdiv(rank, BLOCK_R)
    block_k = BLOCK_K[x.element_size()]
    blocks = triton.cdiv(inputs, block_k)
    steps = triton.cdiv(blocks, min(blocks, max(1, processors(out.device) // (tiles * slices)), 16))
    parts = triton.cdiv(blocks, steps)
    low = torch.empty(parts, rows, rank, dtype=torch.float32, device=out.device)
    wide = x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and interpreting())
    with launching(out.device):
        adapter_down_kernel[(tiles, slices, parts)](
            read, down, low, rows, inputs, rank, read.stride(0), down.stride(0), steps,
            block_m, BLOCK_R, block_k, wide, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        adapter_up_kernel[(tiles, triton.cdiv(up.shape[0], BLOCK_N))](
            low, up, served, rows, rank, up.shape[0], up.stride(0), served.stride(0), parts,
            block_m, BLOCK_R, BLOCK_N, wide, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out
