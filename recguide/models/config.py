"""The numbers that describe one decoder-only backbone, read from a Hugging Face ``config.json``.

Knows nothing of weights or files other than the configuration itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from recguide.errors import RecGuideError


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN rotary scaling (Peng et al. 2023); ``attention_factor`` multiplies cos and sin.

    ``truncate`` rounds the ramp's ends to whole dimensions (transformers' default; Megatron-Bridge does not round).
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class QueryScale:
    """Llama-4 scaling of queries, after the rotation: 1 + beta * ln(1 + floor(position / original_max_positions))."""

    beta: float
    original_max_positions: int


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Behaviours in which public implementations of self-speculation differ; README has them in one table.

    Defaults are those of the released Hugging Face code where that is no fault. ``seed_in_block``: slot 0 of a draft
    block is the seed; else a block is masks only, behind the seed's causal row. ``draft_shift`` 0: mask row i predicts
    position i; 1: row i predicts position i + 1, the seed's row too (an adapter brings its own). ``exclude_mask``: the
    mask id is no candidate. ``clamp_to_budget``: no token beyond the budget. ``count_prefill``: forwards over nothing
    but prompt count in tokens per forward. Raises RecGuideError for a value that the engine does not have.
    """

    seed_in_block: bool = True
    draft_shift: int = 0
    exclude_mask: bool = True
    clamp_to_budget: bool = True
    count_prefill: bool = False

    def __post_init__(self) -> None:
        only = {
            "exclude_mask": (True, "a mask that could be drafted or emitted would be text, or drafted for ever"),
            "clamp_to_budget": (True, "max_new_tokens is exact"),
        }
        if self.draft_shift not in (0, 1):
            raise RecGuideError(f"draft_shift is {self.draft_shift!r}; supported: 0 or 1")
        for name, (value, reason) in only.items():
            if getattr(self, name) != value:
                raise RecGuideError(f"{name} is {getattr(self, name)!r}; supported: {value!r} ({reason})")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and token facts of a backbone (RMSNorm, RoPE, grouped-query attention, SwiGLU).

    ``mask_id`` is the id written into mask rows. A model without a mask token gets the virtual id
    ``vocab_size``: it has no logit, so it cannot be emitted; its embedding belongs to the draft adapter.
    ``block_size`` is the draft block (seed included) the model was published with, if any.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    yarn: YarnScaling | None = None
    query_scale: QueryScale | None = None
    max_positions: int = 2048
    tie_embeddings: bool = True
    mask_id: int = -1
    eos_ids: tuple[int, ...] = ()
    conventions: Conventions = Conventions()
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.mask_id == -1:
            object.__setattr__(self, "mask_id", self.vocab_size)
        if self.num_heads % self.num_kv_heads:
            raise RecGuideError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise RecGuideError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")

    @property
    def has_virtual_mask(self) -> bool:
        return self.mask_id >= self.vocab_size

    @property
    def group_size(self) -> int:
        """Query heads that share a K/V head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token at two bytes an element."""
        return 4 * self.num_layers * self.num_kv_heads * self.head_dim


CONVENTIONS_KEY = "recguide_conventions"
NEMOTRON = "nemotron_labs_diffusion"
SUPPORTED_TYPES = ("llama", "mistral", "ministral3", NEMOTRON)


def from_hf(config: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Read a Llama-type Hugging Face configuration (transformers 4 and 5 spellings of the rotary keys).

    Nemotron-Labs-Diffusion names its mask, EOS and block size here; without them it is refused, since the defaults of
    its published class are wrong for its published weights. A configuration that wraps the language model's (vision
    models, repacks) is read through its ``text_config``.
    """
    config = {**config, **config.get("text_config", {})}
    kind = config.get("model_type")
    if kind not in SUPPORTED_TYPES:
        raise RecGuideError(f"{where}: model_type {kind!r} is not supported; supported: {', '.join(SUPPORTED_TYPES)}")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise RecGuideError(f"{where}: linear layers with biases are not supported")
    if config.get("sliding_window"):
        raise RecGuideError(f"{where}: sliding_window {config['sliding_window']} is not supported; supported: null")
    if kind == NEMOTRON:
        for key in ("mask_token_id", "eos_token_id", "block_size", "head_dim"):
            if config.get(key) is None or config[key] == -1:
                raise RecGuideError(f"{where}: {key} is missing; the published {NEMOTRON} configurations have it")
    try:
        return _read(config)
    except KeyError as missing:
        raise RecGuideError(f"{where}: key {missing} is missing") from None


def _read(config: Mapping[str, Any]) -> ModelConfig:
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    eos = config.get("eos_token_id")
    mask = config.get("mask_token_id")
    return ModelConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        rms_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        yarn=_yarn(rope),
        query_scale=_query_scale(rope),
        max_positions=config["max_position_embeddings"],
        tie_embeddings=config.get("tie_word_embeddings", False),
        mask_id=-1 if mask is None else mask,
        conventions=_conventions(config.get(CONVENTIONS_KEY, {})),
        block_size=config.get("block_size"),
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,),
    )


def _conventions(values: Mapping[str, Any]) -> Conventions:
    known = {field.name for field in fields(Conventions)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise RecGuideError(f"{CONVENTIONS_KEY}: {unknown[0]!r} is unknown; known: {', '.join(sorted(known))}")
    return Conventions(**values)


def _yarn(rope: Mapping[str, Any]) -> YarnScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise RecGuideError(f"config.json: rope_type {kind!r} is not supported; supported: default, yarn")
    factor = float(rope["factor"])
    return YarnScaling(
        factor=factor,
        original_max_positions=rope["original_max_position_embeddings"],
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        attention_factor=_attention_factor(rope, factor),
        truncate=rope.get("truncate", True),
    )


def _query_scale(rope: Mapping[str, Any]) -> QueryScale | None:
    beta = rope.get("llama_4_scaling_beta")
    return QueryScale(beta=beta, original_max_positions=rope["original_max_position_embeddings"]) if beta else None


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float:
    """mscale(factor) / mscale_all_dim(factor) where both are given (1.0 for Nemotron), else 0.1 ln(factor) + 1."""
    import math

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return mscale(1.0)
