"""The K/V cache: one slot per running request, committed by length.

A step writes the K/V of all its rows behind a request's committed length; what the trunk commits is already in place
(``commit`` raises the length), everything else is scratch: it is overwritten by the next step and never read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recguide.engine.layout import Layout
from recguide.errors import RecGuideError
from recguide.kernels.native import NativeAttention, StepCache
from recguide.kernels.rows import Places
from recguide.kernels.step_attention import step_attention, store_kv
from recguide.models.config import ModelConfig


class KVCache:
    """``capacity`` tokens for each of ``slots`` requests, plus ``scratch`` places for a step's uncommitted rows."""

    def __init__(self, config: ModelConfig, slots: int, capacity: int, scratch: int, dtype, device):
        shape = (config.num_layers, slots, config.num_kv_heads, capacity + scratch, config.head_dim)
        try:
            self.k = torch.zeros(shape, dtype=dtype, device=device)
            self.v = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as fault:  # torch has one type for every failed allocation
            size = 2 * self.bytes(shape, dtype) / 1e9
            raise RecGuideError(
                f"no memory for a K/V cache of {size:.1f} GB; lower max_concurrency or max_context"
            ) from fault
        self.capacity, self.scratch = capacity, scratch
        self.lengths = [0] * slots
        self.high = [0] * slots
        self._free = list(range(slots))

    def reserve(self, rows: int) -> None:
        """Make room for a step that writes ``rows`` places behind a request's committed length."""
        if rows <= self.scratch:
            return
        extra = rows - self.scratch
        self.k, self.v = (torch.nn.functional.pad(x, (0, 0, 0, extra)) for x in (self.k, self.v))
        self.scratch = rows

    @staticmethod
    def bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return torch.Size(shape).numel() * dtype.itemsize

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot: running requests stay packed at the front."""
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    @torch.inference_mode()  # the cache may have grown inside a step
    def release(self, slot: int) -> None:
        """Give a slot back. Its values are cleared, so that a NaN in them can never reach another request."""
        used = self.high[slot]
        self.k[:, slot, :, :used] = 0
        self.v[:, slot, :, :used] = 0
        self.lengths[slot] = self.high[slot] = 0
        self._free.append(slot)

    def wrote(self, slot: int, rows: int) -> None:
        """Note that a step wrote ``rows`` places behind the committed length."""
        self.high[slot] = max(self.high[slot], self.lengths[slot] + rows)

    def commit(self, slot: int, tokens: int) -> None:
        """Raise the committed length by ``tokens``; places behind it are scratch again."""
        self.lengths[slot] += tokens
        assert self.lengths[slot] <= self.capacity


class StepAttention:
    """The backbone's ``attend`` for one step: write the rows' K/V behind each request, then attend over the cache."""

    def __init__(self, cache: KVCache, layout: Layout, config: ModelConfig):
        self._cache = cache
        self._places = Places(layout.row_slots, layout.row_keys, layout.first_draft_row)
        self._attend = step_attention(layout.attention, config.group_size, config.head_dim**-0.5, cache.k)

    @property
    def native(self) -> StepCache | None:
        """What the C kernels need to run all layers in one call; None where another version attends."""
        if not isinstance(self._attend, NativeAttention):
            return None
        return StepCache(self._cache.k, self._cache.v, self._places, self._attend)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cached_k, cached_v = self._cache.k[layer], self._cache.v[layer]
        store_kv(k, v, cached_k, cached_v, self._places)
        return self._attend(q, cached_k, cached_v)
