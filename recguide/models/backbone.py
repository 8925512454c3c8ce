"""The decoder-only backbone over flat rows: RMSNorm, RoPE, grouped-query attention, SwiGLU.

One forward takes rows of many requests, packed flat. It does not know requests, caches or masks: the caller hands it
``attend``, which stores the rows' K/V wherever it likes and returns the attention output. Rows from ``first_draft_row``
on go through the draft adapter, all others through the plain weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from recguide.kernels import native
from recguide.kernels.backend import native_takes
from recguide.models.adapter import FusedAdapter, NativeLowRank
from recguide.models.config import ModelConfig
from recguide.models.linear import Linear
from recguide.models.norm import RMSNorm
from recguide.models.rope import inverse_frequencies, query_scales, rotary_table, rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]) -> [rows, heads * head_dim]. q, k and v may
be overwritten once it has returned. One that has ``native`` (a ``kernels.native.StepCache``, not None) lets all layers
run in one call."""


class Layer:
    """Weights of one decoder layer; q/k/v and gate/up are fused."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, pack: bool, eps: float):
        def fuse(*names: str) -> Linear:
            return Linear(torch.cat([weights[f"{prefix}{n}.weight"] for n in names]), pack)

        self.qkv = fuse("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.o = fuse("self_attn.o_proj")
        self.gate_up = fuse("mlp.gate_proj", "mlp.up_proj")
        self.down = fuse("mlp.down_proj")
        self.maps = {"qkv": self.qkv, "o": self.o, "gate_up": self.gate_up, "down": self.down}
        self.input_norm = RMSNorm(weights[prefix + "input_layernorm.weight"], eps)
        self.post_norm = RMSNorm(weights[prefix + "post_attention_layernorm.weight"], eps)

    def joined(self, adapted: Mapping[str, NativeLowRank]) -> tuple[Tensor, Tensor, dict[str, native.Projection]]:
        """As ``native.Decoder`` takes it."""
        maps = {
            name: adapted[name].projection if name in adapted else native.Projection(linear.native, None)
            for name, linear in self.maps.items()
        }
        return self.input_norm.wide, self.post_norm.wide, maps


class Backbone:
    """Frozen weights and the forward pass.

    ``weights`` maps Hugging Face Llama names (``model.layers.N...``) to tensors of one dtype on one device.
    ``pack`` prepacks the linear maps for CPU inference (no gradients through them).
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], *, pack: bool = True):
        self.config, self.packed = config, pack
        self.embedding = weights["model.embed_tokens.weight"]
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        # The largest map first: while it is converted and packed, the others take no memory yet.
        self.head = Linear(self.embedding if config.tie_embeddings else weights["lm_head.weight"], pack)
        self.layers = [Layer(weights, f"model.layers.{i}.", pack, config.rms_eps) for i in range(config.num_layers)]
        self.norm = RMSNorm(weights["model.norm.weight"], config.rms_eps)
        self._native = all(linear.native for layer in self.layers for linear in layer.maps.values())
        self._joined: dict[FusedAdapter | None, native.Decoder] = {}  # plain, and with the adapter asked for last
        self._angles: tuple[Tensor, Tensor] | None = None  # rotary table of the positions from 0 on
        self.frequencies = inverse_frequencies(config).to(self.device)

    def embed(self, tokens: Tensor, mask_rows: Tensor | None, mask_embedding: Tensor | None) -> Tensor:
        """[rows, hidden]; rows listed in ``mask_rows`` take the mask embedding whatever their id."""
        if mask_embedding is None or mask_rows is None:
            return F.embedding(tokens, self.embedding)
        plain = F.embedding(tokens.clamp(max=self.config.vocab_size - 1), self.embedding)
        return plain.index_put((mask_rows,), mask_embedding.to(plain.dtype))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        first_draft_row: int | None = None,
        mask_rows: Tensor | None = None,
        adapter: FusedAdapter | None = None,
    ) -> Tensor:
        """Hidden states [rows, hidden] after the last norm.

        tokens, positions: int64 [rows]; mask_rows: int64 [masks], rows that hold the mask;
        first_draft_row: the first row that the adapter serves (None: no row).
        """
        split = None if adapter is None or first_draft_row == len(tokens) else first_draft_row
        mask = adapter.mask_embedding if adapter else None
        unknown = mask is None and self.config.has_virtual_mask and mask_rows is not None and len(mask_rows)
        cache = None if unknown else self._native_cache(attend, split, adapter)
        if cache is not None:
            decoder = self._decoder(None if split is None else adapter)
            return native.decode(decoder, tokens, positions, mask, self._table(cache.k.shape[3]), cache, split)
        hidden = self.embed(tokens, mask_rows, mask)
        rotary = rotary_table(self.frequencies, positions, self._rotary_factor, self.dtype)
        scales = query_scales(self.config.query_scale, positions, self.dtype) if self.config.query_scale else None
        for index, layer in enumerate(self.layers):
            hidden = self._layer(index, layer, hidden, rotary, scales, attend, split, adapter)
        return self.norm(hidden)

    @property
    def _rotary_factor(self) -> float:
        return self.config.yarn.attention_factor if self.config.yarn else 1.0

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] of the rows given; a real mask token's column is -inf, so it is never chosen."""
        logits = self.head(hidden)
        if not self.config.has_virtual_mask:
            logits[:, self.config.mask_id] = float("-inf")
        return logits

    def _layer(self, index, layer: Layer, hidden, rotary, scales, attend: Attend, split, adapter) -> Tensor:
        c = self.config
        rows = len(hidden)
        mixed = project(layer.qkv, layer.input_norm(hidden), index, "qkv", split, adapter)
        heads = mixed.view(rows, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = heads.split((c.num_heads + c.num_kv_heads, c.num_kv_heads), 1)
        q, k = rotate(qk, *rotary).split((c.num_heads, c.num_kv_heads), 1)
        attended = attend(index, q if scales is None else q * scales, k, v)
        hidden = project(layer.o, attended, index, "o", split, adapter, onto=hidden)
        gate_up = project(layer.gate_up, layer.post_norm(hidden), index, "gate_up", split, adapter)
        return project(layer.down, gated(gate_up), index, "down", split, adapter, onto=hidden)

    def _native_cache(self, attend: Attend, split: int | None, adapter: FusedAdapter | None) -> native.StepCache | None:
        """Where the C kernels find K/V, where they can run all layers in one call."""
        fit = self._native and native_takes(self.embedding) and not self.config.query_scale
        return getattr(attend, "native", None) if fit and (split is None or adapter.native) else None

    def _decoder(self, adapter: FusedAdapter | None) -> native.Decoder:
        """All layers with the adapter's parts."""
        if adapter not in self._joined:
            c = self.config
            parts = adapter.layers if adapter else [{}] * len(self.layers)
            self._joined = {known: decoder for known, decoder in self._joined.items() if known is None}
            self._joined[adapter] = native.Decoder(
                [layer.joined(part) for layer, part in zip(self.layers, parts, strict=True)],
                self.embedding, self.norm.wide,
                heads=c.num_heads, kv_heads=c.num_kv_heads, width=c.head_dim, eps=c.rms_eps,
            )  # fmt: skip
        return self._joined[adapter]

    def _table(self, positions: int) -> tuple[Tensor, Tensor]:
        """The rotary table of so many positions or more."""
        if self._angles is None or len(self._angles[0]) < positions:
            self._angles = rotary_table(self.frequencies, torch.arange(positions), self._rotary_factor, self.dtype)
        return self._angles


def project(
    linear: Linear, x: Tensor, layer: int, name: str, split: int | None, adapter, onto: Tensor | None = None
) -> Tensor:
    """The plain map for every row, plus the adapter's part on rows from ``split`` on; added to ``onto``, which may be
    overwritten."""
    adapted = None if split is None else adapter.layers[layer].get(name)
    return linear(x, onto) if adapted is None else adapted(linear, x, split, onto)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [rows, inner] of [rows, 2 inner]."""
    if native_takes(gate_up):
        return native.silu_product(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up
