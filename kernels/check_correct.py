"""Correctness on the device: every Triton kernel against float64, fresh random inputs, unread memory full of NaN."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .accept import StepDrafts, accept_reference
from .accept_triton import accept_triton
from .adapter_triton import add_low_rank_triton
from .attention_triton import TritonAttention
from .check_steps import random_step
from .noise import gumbel
from .rows import StepRows
from .signals_triton import sample_triton, signals_triton

LIMITS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Relative error that a result stored in a dtype may have."""
ARITHMETIC = 1e-5  # of what is computed and returned in float32, whatever the storage


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the random cases are."""

    cases: int
    requests: int
    context: int
    rows: int
    vocab: int
    hidden: int
    head_dims: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


FULL = Sizes(
    cases=4, requests=9, context=700, rows=150, vocab=131072, hidden=4096, head_dims=(16, 80, 128, 256),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
)  # fmt: skip
TINY = Sizes(
    cases=1, requests=2, context=40, rows=9, vocab=301, hidden=48, head_dims=(16, 24),
    dtypes=(torch.float32, torch.float16),
)  # fmt: skip


def check_all(device: torch.device, sizes: Sizes, seed: int) -> Iterator[dict[str, Any]]:
    """One record a kernel and dtype: the largest error seen, its limit, and whether it holds."""
    torch.manual_seed(seed)
    chooser = random.Random(seed)
    for dtype in sizes.dtypes:
        for head_dim in sizes.head_dims:
            errors = [attention_error(device, dtype, head_dim, sizes, chooser) for _ in range(sizes.cases)]
            yield _record(f"attention d{head_dim}", dtype, errors, LIMITS[dtype])
        for name, error, limit in (
            ("signals", signals_error, ARITHMETIC),
            ("sample", sample_error, ARITHMETIC),
            ("adapter", adapter_error, LIMITS[dtype]),
        ):
            yield _record(name, dtype, [error(device, dtype, sizes, chooser) for _ in range(sizes.cases)], limit)
    yield _record("accept", torch.int64, [accept_error(device, chooser) for _ in range(sizes.cases)], 0.0)


def _record(name: str, dtype: torch.dtype, errors: list[float], limit: float) -> dict[str, Any]:
    worst = max(errors)
    kind = str(dtype).removeprefix("torch.")
    return {"kernel": name, "dtype": kind, "cases": len(errors), "error": worst, "limit": limit, "ok": worst <= limit}


def relative(made: Tensor, exact: Tensor) -> float:
    """|made - exact| / |exact|; infinite where ``made`` is not finite."""
    error = float((made.double() - exact).norm() / exact.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


def caches(step: StepRows, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """K and V [slots, kv_heads, tokens, head_dim] with NaN wherever the step has no key."""
    shape = (max(step.slots) + 1, kv_heads, max(step.keys) + 5, head_dim)
    made = [torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in "kv"]
    for cache in made:
        for slot, keys in zip(step.slots, step.keys, strict=True):
            cache[slot, :, :keys].normal_()
    return made


def exact_attention(step: StepRows, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """float64, one request at a time, over a dense mask by the rule's own words."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // k.shape[1]
    for slot, rows, keys in zip(step.slots, step.owned, step.keys, strict=True):
        limit, low, high = (
            torch.tensor([column[r] for r in rows], device=q.device)[:, None]
            for column in (step.limits, step.lows, step.highs)
        )
        key = torch.arange(keys, device=q.device)
        seen = (key < limit) | ((key >= low) & (key < high))
        mine_k, mine_v = (x[slot, :, :keys].double().repeat_interleave(group, 0) for x in (k, v))
        scores = torch.einsum("rhd,hkd->hrk", q[rows].double(), mine_k) * scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hrk,hkd->rhd", weights, mine_v)
    return out


def attention_error(device, dtype, head_dim: int, sizes: Sizes, chooser: random.Random) -> float:
    step = random_step(chooser, sizes.requests, sizes.context, sizes.rows)
    kv_heads, group = chooser.randint(1, 4), chooser.randint(1, 5)
    q = torch.randn(step.total, kv_heads * group, head_dim, device=device).to(dtype)
    k, v = caches(step, kv_heads, head_dim, dtype, device)
    scale = head_dim**-0.5
    made = TritonAttention(step, group, scale, k)(q, k, v)
    return relative(made.view(q.shape), exact_attention(step, q, k, v, scale))


def signals_error(device, dtype, sizes: Sizes, chooser: random.Random) -> float:
    logits = (3 * torch.randn(chooser.randint(1, 9), sizes.vocab, device=device)).to(dtype)
    mask_id = chooser.randrange(sizes.vocab)
    made = signals_triton(logits, True, 4, mask_id)
    wide = logits.double()
    wide[:, mask_id] = float("-inf")
    logs = wide.log_softmax(-1)
    entropy = -torch.where(logs.isinf(), 0.0, logs.exp() * logs).sum(-1)
    best = logs.exp().topk(4, -1)
    # equal logits may come in any order: what the ids stand for is compared
    named = logs.exp().gather(1, made.ids)
    pairs = (
        (made.probabilities, best.values[:, :2]), (named, best.values[:, :2]), (made.entropy, entropy),
        (made.logsumexp, wide.logsumexp(-1)), (made.top_logits, wide.gather(1, best.indices)),
        (logits.double().gather(1, made.top_ids), wide.gather(1, best.indices)),
    )  # fmt: skip
    return max(relative(a, b) for a, b in pairs)


def sample_error(device, dtype, sizes: Sizes, chooser: random.Random) -> float:
    """How far the drawn tokens' scores are below the best, by the reference's noise."""
    rows = chooser.randint(1, 5)
    logits = (3 * torch.randn(rows, sizes.vocab, device=device)).to(dtype)
    temperatures = torch.tensor([chooser.uniform(0.1, 2) for _ in range(rows)])
    seeds = torch.tensor([chooser.randrange(2**63) for _ in range(rows)])
    positions = torch.tensor([chooser.randrange(10**5) for _ in range(rows)])
    drawn = sample_triton(logits, temperatures, seeds, positions)
    worst = 0.0
    for i, (temperature, seed, position) in enumerate(
        zip(temperatures.tolist(), seeds.tolist(), positions.tolist(), strict=True)
    ):
        scores = logits[i].double() / temperature + gumbel(seed, position, None, sizes.vocab, device).double()
        worst = max(worst, float((scores.max() - scores[drawn[i]]) / scores.max().abs()))
    return worst


def adapter_error(device, dtype, sizes: Sizes, chooser: random.Random) -> float:
    rows, rank, inputs, outputs = (chooser.randint(1, n) for n in (sizes.rows, 130, sizes.hidden, sizes.hidden))
    first = chooser.randrange(rows)
    out, x = (torch.randn(rows, n, device=device).to(dtype) for n in (outputs, inputs))
    down = (torch.randn(rank, inputs, device=device) / inputs**0.5).to(dtype)
    up = (torch.randn(outputs, rank, device=device) / rank**0.5).to(dtype)
    exact = out.double()
    exact[first:] += x[first:].double() @ down.double().T @ up.double().T
    x[:first] = float("nan")
    return relative(add_low_rank_triton(out, x, down, up, first), exact)


def accept_error(device, chooser: random.Random) -> float:
    """1 where any result differs from the reference's."""
    step = random_drafts(device, chooser, chooser.randint(1, 40), 31, 9)
    same = map(torch.equal, accept_triton(step, 31, 9), accept_reference(step, 31))
    return 0.0 if all(same) else 1.0


def random_drafts(device, chooser: random.Random, requests: int, most: int, most_branches: int) -> StepDrafts:
    """Drafts that are often right, and branches of any parent."""
    counts = [chooser.randint(0, most) for _ in range(requests)]
    branches = [chooser.randint(0, most_branches) for _ in range(requests)]
    total = sum(branches)

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def starts(sizes: list[int], extra: int = 0) -> list[int]:
        places = [0]
        for size in sizes:
            places.append(places[-1] + size + extra)
        return places

    def tokens(count: int, most_token: Callable[[], int] = lambda: chooser.choice((0, 0, 0, 1))) -> Tensor:
        return tensor([most_token() for _ in range(count)])

    parents = [chooser.randint(0, counts[i] + 1) for i in range(requests) for _ in range(branches[i])]
    drawn = sum(counts) + requests
    firsts = tokens(total, lambda: chooser.choice((0, 1, -1 - chooser.randrange(drawn))))
    free = tokens(total, lambda: chooser.choice((0, 0, 1))).bool()
    return StepDrafts(
        tokens(sum(counts)), tensor(starts(counts)), tokens(drawn), tensor(starts(counts, 1)[:-1]), tensor(parents),
        firsts, free, tensor(starts(branches)),
    )  # fmt: skip
