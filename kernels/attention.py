"""Attention of a step's query rows over cached and in-step keys: the torch reference, fast on a CPU.

Knows nothing of requests or plans. Query heads that share a K/V head are folded into rows, so that one product serves
the whole group; ``torch``'s own grouped attention is several times slower on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def fold_mask(blocked: Tensor | None, group_size: int) -> Tensor | None:
    """Repeat a mask [requests, rows, keys] for the query heads folded into rows: [requests, 1, group*rows, keys]."""
    if blocked is None:
        return None
    requests, rows, keys = blocked.shape
    return blocked[:, None, None].expand(requests, 1, group_size, rows, keys).reshape(requests, 1, -1, keys)


def attention(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T * scale) v over the keys that are not blocked.

    q [requests, rows, heads, head_dim]; k, v [requests, kv_heads, keys, head_dim]; blocked is bool, folded by
    ``fold_mask``, True where a row may not look, or None. It may tell of the last keys only, where all rows see those
    before. For a single request it may be given as ``additive`` scores, made once for many calls. Every row must see
    at least one key. Among several requests a blocked key may hold any bits, NaN included; blocked values must be
    finite. Returns [requests, rows, heads * head_dim].
    """
    requests, rows, heads, _ = q.shape
    kv_heads = k.shape[1]
    folded = _fold(q, kv_heads)
    if requests == 1:
        mask = blocked
        if blocked is not None and blocked.dtype == torch.bool:
            mask = additive(blocked, q.dtype, k.shape[2])
        out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    else:
        out = _batched(folded, k, v, blocked, scale)
    return _unfold(out, rows, heads)


def attention_to_train(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """``attention`` of one request, its mask ``additive``, by plain products: a fused operation's backward takes three
    times as long on a CPU. Differentiable in q [rows, heads, head_dim], k and v [kv_heads, keys, head_dim]; returns
    [rows, heads * head_dim]."""
    rows, heads, _ = q.shape
    folded = _fold(q[None], len(k))[0]
    scores = torch.baddbmm(mask[0].expand(len(k), -1, -1), folded * scale, k.transpose(-1, -2))
    return _unfold(torch.bmm(scores.softmax(-1), v)[None], rows, heads)[0]


def additive(blocked: Tensor, dtype: torch.dtype, keys: int) -> Tensor:
    """The mask as scores to add to those of all ``keys``: -inf where blocked."""
    scores = torch.zeros(*blocked.shape[:-1], keys, dtype=dtype, device=blocked.device)
    scores[..., keys - blocked.shape[-1] :].masked_fill_(blocked, float("-inf"))
    return scores


def _fold(q: Tensor, kv_heads: int) -> Tensor:
    """[requests, rows, heads, width] -> [requests, kv_heads, group*rows, width]."""
    requests, rows, heads, width = q.shape
    if rows == 1:
        return q.reshape(requests, kv_heads, heads // kv_heads, width)
    split = q.view(requests, rows, kv_heads, heads // kv_heads, width)
    return split.permute(0, 2, 3, 1, 4).reshape(requests, kv_heads, -1, width)


def _unfold(out: Tensor, rows: int, heads: int) -> Tensor:
    """[requests, kv_heads, group*rows, width] -> [requests, rows, heads * width]."""
    requests, kv_heads, _, width = out.shape
    if rows == 1:
        return out.reshape(requests, 1, heads * width)
    out = out.view(requests, kv_heads, heads // kv_heads, rows, width)
    return out.permute(0, 3, 1, 2, 4).reshape(requests, rows, heads * width)


def _batched(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, scale: float) -> Tensor:
    # a dense k keeps the product on oneDNN's path: the copy costs a tenth of what it saves
    scores = torch.matmul(q * scale, k.contiguous().transpose(-1, -2))
    if blocked is not None:
        scores[..., scores.shape[-1] - blocked.shape[-1] :].masked_fill_(blocked, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)
