"""The model written once more, plainly: float64, no cache, one row and one head at a time, what a row sees as a set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.engine.layout import Segment
from recguide.models.adapter import DraftAdapter
from recguide.models.config import ModelConfig


@dataclass
class PlainRow:
    """``token`` None is a mask. ``sees`` holds numbers of rows, itself included."""

    token: int | None
    position: int
    sees: set[int]
    draft: bool = False


def rows_of(text: list[int], segment: Segment, adapt_tokens: bool = True) -> tuple[list[PlainRow], list[list[int]]]:
    """All rows of one request: its cached text, the trunk, the branches. Also the row numbers of each branch."""
    trunk = list(segment.trunk)
    rows = [PlainRow(t, i, set(range(i + 1))) for i, t in enumerate(text[: segment.cached] + trunk)]
    branches = []
    for branch in segment.branches:
        tokens = ([] if branch.token is None else [branch.token]) + [None] * branch.masks
        start = segment.cached + segment.prefill + branch.parent
        own = range(len(rows), len(rows) + len(tokens))
        rows += [PlainRow(t, start + i, set(range(start)) | set(own), True) for i, t in enumerate(tokens)]
        if branch.token is not None and not adapt_tokens:
            rows[own[0]] = PlainRow(branch.token, start, {*range(start), own[0]})
        branches.append(list(own))
    return rows, branches


def plain_logits(weights: Mapping[str, Tensor], config: ModelConfig, adapter: DraftAdapter, rows: list[PlainRow]):
    """[rows, vocab] float64."""
    w = {name: value.double() for name, value in weights.items()}
    mask = adapter.mask_embedding.double()
    states = [mask if r.token is None else w["model.embed_tokens.weight"][r.token] for r in rows]
    for layer in range(config.num_layers):
        states = _layer(layer, w, config, adapter, rows, states)
    head = w["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
    return torch.stack([head @ _norm(s, w["model.norm.weight"], config) for s in states])


def _layer(layer, w, config, adapter, rows, states):
    prefix = f"model.layers.{layer}."

    def maps(name, x, row):
        out = w[f"{prefix}{name}.weight"] @ x
        key = f"{layer}/{name}".replace(".", "/")
        if row.draft and key + "|A" in adapter.factors:
            down, up = adapter.factors[key + "|A"].double(), adapter.factors[key + "|B"].double()
            out = out + adapter.config.scale * (up @ (down @ x))
        return out

    normed = [_norm(s, w[prefix + "input_layernorm.weight"], config) for s in states]
    query, key, value = (
        [maps(f"self_attn.{n}_proj", x, r).view(-1, config.head_dim) for x, r in zip(normed, rows, strict=True)]
        for n in "qkv"
    )
    query = [_turn(q, r.position, config) for q, r in zip(query, rows, strict=True)]
    key = [_turn(k, r.position, config) for k, r in zip(key, rows, strict=True)]
    out = []
    for row, state, q in zip(rows, states, query, strict=True):
        mixed = state + maps("self_attn.o_proj", _attend(sorted(row.sees), q, key, value, config), row)
        x = _norm(mixed, w[prefix + "post_attention_layernorm.weight"], config)
        gate, up = maps("mlp.gate_proj", x, row), maps("mlp.up_proj", x, row)
        out.append(mixed + maps("mlp.down_proj", gate * torch.sigmoid(gate) * up, row))
    return out


def _attend(sees, q, key, value, config):
    heads = []
    for head in range(config.num_heads):
        shared = head * config.num_kv_heads // config.num_heads
        scores = torch.stack([q[head] @ key[s][shared] for s in sees]) / math.sqrt(config.head_dim)
        heads.append(sum(p * value[s][shared] for p, s in zip(scores.softmax(0), sees, strict=True)))
    return torch.cat(heads)


def _norm(x, weight, config):
    return x / (x.pow(2).mean() + config.rms_eps).sqrt() * weight


def _turn(heads, position, config):
    """Rotate pairs (i, i + half) by position / theta^(2i/d)."""
    half = config.head_dim // 2
    angle = position / config.rope_theta ** (torch.arange(half).double() / half)
    first, second = heads[:, :half], heads[:, half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), 1)
