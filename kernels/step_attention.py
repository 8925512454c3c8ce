"""Attention of a step's flat rows over the K/V cache: one function, prepared once a step and called once a layer.

The step's own K/V are written into the cache before (``store_kv``): cached and in-step keys are read alike. The torch
version computes groups of requests by dense masked products, the Triton version (``attention_triton``) and that in C
(``native``) all rows in one launch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import native
from .attention import additive, attention
from .backend import choose, native_takes
from .rows import Group, Places, StepRows, groups_of

CachedAttention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [rows, heads, head_dim], one layer's k and v [slots, kv_heads, tokens, head_dim]) -> [rows, heads * head_dim]."""


def store_kv(k: Tensor, v: Tensor, cached_k: Tensor, cached_v: Tensor, places: Places) -> None:
    """Write a step's k and v [rows, kv_heads, head_dim] into one layer's cache [slots, kv_heads, tokens, head_dim].

    What is not finite in draft rows is stored as 0: a masked value still meets a weight of 0, and 0 * NaN is NaN.
    """
    slots, keys, first_draft_row = places
    if native_takes(k) and native.attends(k.shape[-1]):
        native.store_kv(k, v, cached_k, cached_v, slots, keys, first_draft_row)
        return
    if first_draft_row < len(k):
        for drafts in (k[first_draft_row:], v[first_draft_row:]):
            drafts.nan_to_num_(0.0, 0.0, 0.0)
    cached_k[slots, :, keys] = k
    cached_v[slots, :, keys] = v


def step_attention(step: StepRows, group_size: int, scale: float, like: Tensor) -> CachedAttention:
    """Attention under ``step``'s rule, for every layer of the step.

    ``group_size`` is query heads per K/V head; dtype and device are those of ``like`` (float32, bfloat16, float16).
    Every row must see at least one key. What no row sees is never read, or may hold any bits where several requests'
    keys are masked together; the values of a request's own rows must be finite, since a masked value still meets a
    weight of 0.
    """
    if choose(like.device).triton:
        from .attention_triton import TritonAttention

        return TritonAttention(step, group_size, scale, like)
    if native_takes(like) and native.attends(like.shape[-1]) and group_size <= native.QUERIES:
        return native.NativeAttention(step, group_size, scale)
    return GroupedAttention(step, group_size, scale, like)


class GroupedAttention:
    """The torch reference: requests of similar size share a product."""

    def __init__(self, step: StepRows, group_size: int, scale: float, like: Tensor):
        self._scale = scale
        self._groups = groups_of(step, group_size)
        if like.device.type != "cpu":
            self._groups = [group.to(like.device) for group in self._groups]
        self._masks = [_mask(group, like.dtype) for group in self._groups]
        only = self._groups[0] if len(self._groups) == 1 else None
        # with one group of in-order rows, q needs no gathering and the output no scattering
        self._in_order = only is not None and only.real is None and only.rows.numel() == step.total
        self._in_order = self._in_order and bool((only.rows.reshape(-1).diff() == 1).all())

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._in_order:
            group = self._groups[0]
            grouped = q.view(len(group.slots), -1, *q.shape[1:])
            return self._attend(group, self._masks[0], grouped, k, v).reshape(len(q), -1)
        out = q.new_empty(len(q), q.shape[1] * q.shape[2])
        for group, mask in zip(self._groups, self._masks, strict=True):
            made = self._attend(group, mask, q[group.rows], k, v).flatten(0, 1)
            if group.real is None:
                out[group.rows.reshape(-1)] = made
            else:
                out[group.rows.reshape(-1)[group.real]] = made[group.real]
        return out

    def _attend(self, group: Group, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, _read(k, group), _read(v, group), mask, self._scale)


def _read(stored: Tensor, group: Group) -> Tensor:
    """[requests, kv_heads, keys, head_dim]: a view when the slots are neighbours, else a copy."""
    first, count = group.slots[0], len(group.slots)
    if group.slots[-1] - first == count - 1:
        return stored[first : first + count, :, : group.keys]
    return stored[group.slots, :, : group.keys]


def _mask(group: Group, dtype: torch.dtype) -> Tensor | None:
    """A single request's mask as scores to add, made once for all layers; several requests' as it is."""
    if group.blocked is None or len(group.slots) > 1:
        return group.blocked
    return additive(group.blocked, dtype, group.keys)
