"""Speed on the device: medians of the Triton kernels and of torch's own ways, beside the device's measured ceilings.

Shapes are those of one layer, and of the output head, of an 8B model (32 query heads, 8 K/V heads, head_dim 128,
vocabulary 131072, hidden size 4096, adapter rank 128). Caches of the processor are flushed before every sample.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from triton.runtime.errors import OutOfResources

from .accept import accept_reference
from .accept_triton import accept_triton
from .adapter_triton import add_low_rank_triton
from .attention_triton import Tiling, TritonAttention
from .check_correct import random_drafts
from .check_steps import Plan, linear, overlap, quadratic, step_of, visible_keys
from .rows import StepRows, blocked_keys
from .signals import signals_reference
from .signals_triton import signals_triton
from .step_attention import GroupedAttention


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The model's sizes, the loads and the plans, and how much is measured."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 131072
    hidden: int = 4096
    rank: int = 128
    context: int = 1024
    requests: tuple[int, ...] = (1, 8, 32, 128)
    plans: tuple[Plan, ...] = (linear(32), overlap(16), quadratic(8))
    most_logit_rows: int = 4096
    copy_bytes: int = 2**30
    product: int = 8192
    dtype: torch.dtype = torch.bfloat16
    repeats: int = 30


TINY = Shapes(
    heads=4, kv_heads=2, head_dim=16, vocab=300, hidden=32, rank=4, context=20, requests=(1, 2),
    plans=(linear(3), overlap(2), quadratic(2)), most_logit_rows=4, copy_bytes=2**16, product=64,
    dtype=torch.float32, repeats=1,
)  # fmt: skip


class Stopwatch:
    """Median milliseconds of a call on a device."""

    def __init__(self, device: torch.device, repeats: int):
        self._gpu, self._repeats = device.type == "cuda", repeats
        # overwritten before each sample: the last one's data must not be at hand
        self._flush = torch.empty(2**28 if self._gpu else 0, dtype=torch.uint8, device=device)

    def __call__(self, work: Callable[[], Any]) -> float:
        work()
        return statistics.median(self._sample(work) for _ in range(self._repeats))

    def _sample(self, work: Callable[[], Any]) -> float:
        if not self._gpu:
            started = time.perf_counter()
            work()
            return (time.perf_counter() - started) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def ceilings(device: torch.device, shapes: Shapes, watch: Stopwatch) -> dict[str, float]:
    """What the device reaches at best: bytes read and written by a copy, and operations of a matrix product."""
    source = torch.zeros(shapes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = watch(lambda: target.copy_(source))
    square = torch.randn(shapes.product, shapes.product, device=device).to(shapes.dtype)
    multiplied = watch(lambda: square @ square)
    return {"gb_per_s": 2 * shapes.copy_bytes / copied / 1e6, "tflops": 2 * shapes.product**3 / multiplied / 1e9}


def _point(name: str, ours: float, others: dict[str, float], moved: float, flops: float, top: dict[str, float]) -> dict:
    """One measured point; ``moved`` bytes and ``flops`` are the least that the operation needs."""
    best = min(others, key=others.get)
    bandwidth, rate = moved / ours / 1e6, flops / ours / 1e9
    return {
        "point": name,
        "triton_ms": ours,
        "torch_ms": others,
        "best_torch": best,
        "speedup": others[best] / ours,
        "gb_per_s": bandwidth,
        "of_copy_bandwidth": bandwidth / top["gb_per_s"],
        "tflops": rate,
        "of_product_flops": rate / top["tflops"],
    }


def attention_points(device, shapes: Shapes, watch: Stopwatch, top, deadline: float) -> Iterator[dict[str, Any]]:
    """Attention of every plan at every load. What compiles for long (FlexAttention, other tiles) until ``deadline``."""
    for plan in shapes.plans:
        for requests in shapes.requests:
            step = step_of([plan] * requests, [shapes.context] * requests)
            compiling = time.monotonic() < deadline
            yield attention_point(step, f"{plan.name} C={requests}", device, shapes, watch, top, compiling)


def attention_point(step: StepRows, name: str, device, shapes: Shapes, watch: Stopwatch, top, compiling: bool) -> dict:
    shape = (len(step.slots), shapes.kv_heads, step.keys[0], shapes.head_dim)
    k, v = (torch.randn(shape, device=device).to(shapes.dtype) for _ in "kv")
    q = torch.randn(step.total, shapes.heads, shapes.head_dim, device=device).to(shapes.dtype)
    group, scale = shapes.heads // shapes.kv_heads, shapes.head_dim**-0.5
    ours = TritonAttention(step, group, scale, k)
    expected = ours(q, k, v).view(q.shape)
    others, differences, failed = {}, {}, {}
    for label, make in _alternatives(step, shapes, device, compiling).items():
        try:
            call = make(q, k, v)
            differences[label] = float((call() - expected).float().norm() / expected.float().norm())
            others[label] = watch(call)
        except RuntimeError as fault:  # a way that torch does not go here is no reason to lose the rest
            failed[label] = str(fault).splitlines()[0]
    moved = (k.numel() + v.numel() + 2 * q.numel()) * k.element_size()
    flops = 4 * shapes.heads * shapes.head_dim * visible_keys(step)
    point = _point(name, watch(lambda: ours(q, k, v)), others, moved, flops, top)
    tiles = {}
    for cut in _neighbours(ours.tiling) if compiling else ():
        with contextlib.suppress(OutOfResources):
            tiles[str(tuple(cut))] = watch(partial(TritonAttention(step, group, scale, k, cut), q, k, v))
    return point | {"differences": differences, "failed": failed, "tile": ours.tiling, "other_tiles_ms": tiles}


def _neighbours(cut: Tiling) -> list[Tiling]:
    """Tiles to compare the chosen one with."""
    halves = [cut._replace(block_n=cut.block_n // 2), cut._replace(splits=max(cut.splits // 2, 1))]
    doubles = [cut._replace(splits=2 * cut.splits), cut._replace(stages=cut.stages + 1)]
    return [other for other in (*halves, *doubles) if other != cut and other.block_n >= 16]


def _alternatives(step: StepRows, shapes: Shapes, device, compiling: bool) -> dict[str, Callable]:
    """torch's own ways; each takes q, k and v and returns the call that is timed."""
    rows = torch.tensor(step.owned, device=device)  # [requests, rows]: plans are equal here
    bounds = torch.tensor((step.limits, step.lows, step.highs), dtype=torch.int32)
    blocked = blocked_keys(bounds[:, rows.cpu()], 0, step.keys[0])
    seen = None if blocked is None else ~blocked[:, None].to(device)
    scale, group = shapes.head_dim**-0.5, shapes.heads // shapes.kv_heads

    def back(made: Tensor) -> Tensor:  # [requests, heads, rows, head_dim] -> rows in flat order
        flat = made.new_empty(rows.numel(), shapes.heads, shapes.head_dim)
        flat[rows.flatten()] = made.transpose(1, 2).flatten(0, 1)
        return flat

    def dense(q, k, v):
        return lambda: back(
            F.scaled_dot_product_attention(q[rows].transpose(1, 2), k, v, attn_mask=seen, scale=scale, enable_gqa=True)
        )

    def reference(q, k, v):
        prepared = GroupedAttention(step, group, scale, k)
        return lambda: prepared(q, k, v).view(q.shape)

    def flex(q, k, v):
        attend, mask = _flex(rows, bounds.to(device), step.keys[0], device)
        return lambda: back(attend(q[rows].transpose(1, 2), k, v, block_mask=mask, scale=scale, enable_gqa=True))

    ways = {"SDPA, dense mask": dense, "folded products": reference}
    return ways | ({"FlexAttention": flex} if compiling else {})


def _flex(rows: Tensor, bounds: Tensor, keys: int, device: torch.device) -> tuple[Callable, Any]:
    """FlexAttention and the step's rule as its block mask; compiled where that pays."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    limit, low, high = bounds[:, rows[0]]

    def rule(batch, head, row, key):
        return (key < limit[row]) | ((key >= low[row]) & (key < high[row]))

    gpu = device.type == "cuda"
    mask = create_block_mask(rule, None, None, rows.shape[1], keys, device=device)
    return torch.compile(flex_attention, dynamic=False) if gpu else flex_attention, mask


def signals_points(device, shapes: Shapes, watch: Stopwatch, top) -> Iterator[dict[str, Any]]:
    """Signals with entropy of all rows of a step."""
    counts = {plan.rows * requests for plan in shapes.plans for requests in shapes.requests}
    for rows in sorted({min(count, shapes.most_logit_rows) for count in counts}):
        logits = (3 * torch.randn(rows, shapes.vocab, device=device)).to(shapes.dtype)
        others = {
            "topk, logsumexp, entropy": watch(lambda x=logits: signals_reference(x, True, 0, None)),
            "softmax, topk": watch(lambda x=logits: x.float().softmax(-1).topk(2, -1)),
        }
        ours = watch(lambda x=logits: signals_triton(x, True, 0, None))
        moved = logits.numel() * logits.element_size()
        yield _point(f"signals, {rows} rows", ours, others, moved, 8 * logits.numel(), top)


def adapter_points(device, shapes: Shapes, watch: Stopwatch, top) -> Iterator[dict[str, Any]]:
    """The adapter's part of one projection, where half of a step's rows draft."""
    for requests in shapes.requests:
        rows = 2 * requests * shapes.plans[0].trunk
        out, x = (torch.zeros(rows, shapes.hidden, device=device, dtype=shapes.dtype) for _ in range(2))
        down = torch.zeros(shapes.rank, shapes.hidden, device=device, dtype=shapes.dtype)
        up, half = down.T.contiguous(), rows // 2
        ours = watch(lambda o=out, x=x, d=down, u=up, h=half: add_low_rank_triton(o, x, d, u, h))
        torchs = watch(lambda o=out, x=x, d=down, u=up, h=half: o[h:].add_(F.linear(F.linear(x[h:], d), u)))
        moved = (3 * half * shapes.hidden + 2 * down.numel()) * out.element_size()
        flops = 4 * half * shapes.rank * shapes.hidden
        yield _point(f"adapter, {half} of {rows} rows", ours, {"two linear maps": torchs}, moved, flops, top)


def accept_points(device, shapes: Shapes, watch: Stopwatch, top) -> Iterator[dict[str, Any]]:
    """Acceptance of a whole step, which is all latency."""
    for requests in shapes.requests:
        step = random_drafts(device, random.Random(0), requests, 31, 9)
        ours = watch(lambda s=step: accept_triton(s, 31, 9))
        torchs = watch(lambda s=step: accept_reference(s, 31))
        moved = sum(t.numel() * t.element_size() for t in step)
        yield _point(f"accept, {requests} requests", ours, {"torch operations": torchs}, moved, 0, top)
