"""What a checkpoint is and whether it would run here, from its configuration and tensor headers alone.

Works on a local folder and on a hub name, without fetching or loading weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recguide.errors import RecGuideError
from recguide.models.checkpoint import canonical, expected_tensors, read_json, stored_shapes, weight_bytes
from recguide.models.config import ModelConfig, from_hf
from recguide.models.loader import BUNDLED_ADAPTER, default_device, default_dtype, free_bytes

Shapes = dict[str, tuple[int, ...]]
QUANTISED = (".scales", ".qweight", ".weight_scale", ".weight_packed")


@dataclass(frozen=True)
class Checkpoint:
    """Configuration, stored tensor shapes and the bundled adapter's configuration of a model, local or remote."""

    name: str
    raw: dict[str, Any]
    shapes: Shapes
    adapter: dict[str, Any] | None
    has_tokenizer: bool


def read_checkpoint(name: str) -> Checkpoint:
    """The metadata of a folder, or of a hub repository (a few kilobytes are fetched)."""
    folder = Path(name)
    if folder.is_dir():
        adapter = folder / BUNDLED_ADAPTER / "adapter_config.json"
        return Checkpoint(
            name=name,
            raw=read_json(folder / "config.json"),
            shapes={stored: shape for _, stored, shape in stored_shapes(folder)},
            adapter=read_json(adapter) if adapter.exists() else None,
            has_tokenizer=(folder / "tokenizer.json").exists(),
        )
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise RecGuideError(f"model {name!r} is neither a folder nor a hub name (owner/name)")
    return _remote(name)


def _remote(name: str) -> Checkpoint:
    from huggingface_hub import file_exists, get_safetensors_metadata, hf_hub_download

    def read(path: str) -> dict[str, Any]:
        return json.loads(Path(hf_hub_download(name, path)).read_text())

    try:
        metadata = get_safetensors_metadata(name)
        tensors = (t for file in metadata.files_metadata.values() for t in file.tensors.items())
        adapter = f"{BUNDLED_ADAPTER}/adapter_config.json"
        return Checkpoint(
            name=name,
            raw=read("config.json"),
            shapes={stored: tuple(info.shape) for stored, info in tensors},
            adapter=read(adapter) if file_exists(name, adapter) else None,
            has_tokenizer=file_exists(name, "tokenizer.json"),
        )
    except Exception as fault:  # the hub client has no common base for its network, name and gate errors
        reason = str(fault).splitlines()[0]
        raise RecGuideError(f"model {name!r}: no such folder here, and the hub gave: {reason}") from None


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``bad``: the model will not run as it is."""

    what: str
    found: str
    bad: bool = False


def findings(checkpoint: Checkpoint, device: torch.device | None = None) -> Iterator[Finding]:
    """What the checkpoint is, whether every tensor has a place, what it takes, and what would run on ``device``."""
    config = from_hf(checkpoint.raw, f"{checkpoint.name}/config.json")
    yield Finding("type", f"{checkpoint.raw['model_type']}, {_millions(config)} parameters")
    yield Finding("shape", _shape(config))
    yield Finding("positions", _positions(config))
    yield Finding("tokens", _tokens(config))
    yield from _tensors(checkpoint.shapes, config)
    yield _adapter(checkpoint.adapter, config)
    tokenizer = "found" if checkpoint.has_tokenizer else "tokenizer.json is missing"
    yield Finding("tokenizer", tokenizer, bad=not checkpoint.has_tokenizer)
    yield from _memory(config, device or default_device())


def _millions(config: ModelConfig) -> str:
    count = weight_bytes(config, torch.uint8)
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.2f} million"


def _shape(c: ModelConfig) -> str:
    head = "tied head" if c.tie_embeddings else "untied head"
    return (
        f"{c.num_layers} layers, hidden {c.hidden_size}, inner {c.intermediate_size}, {c.num_heads} query and "
        f"{c.num_kv_heads} K/V heads of {c.head_dim}, vocabulary {c.vocab_size}, {head}"
    )


def _positions(c: ModelConfig) -> str:
    parts = [f"up to {c.max_positions}", f"rope theta {c.rope_theta:g}"]
    if c.yarn:
        parts.append(
            f"YaRN x{c.yarn.factor:g} from {c.yarn.original_max_positions}, attention factor "
            f"{c.yarn.attention_factor:g}"
        )
    if c.query_scale:
        beta, original = c.query_scale.beta, c.query_scale.original_max_positions
        parts.append(f"queries scaled by 1 + {beta:g} ln(1 + position // {original})")
    return ", ".join(parts)


def _tokens(c: ModelConfig) -> str:
    mask = "no mask token: the draft adapter brings a learned one" if c.has_virtual_mask else f"mask {c.mask_id}"
    block = f", published block {c.block_size}" if c.block_size else ""
    return f"{mask}, EOS {', '.join(map(str, c.eos_ids)) or 'none'}{block}"


def _tensors(shapes: Shapes, config: ModelConfig) -> Iterator[Finding]:
    expected = expected_tensors(config)
    known = {canonical(name): (name, shape) for name, shape in shapes.items()}
    missing = sorted(set(expected) - set(known))
    wrong = [(n, *known[n]) for n in sorted(set(expected) & set(known)) if known[n][1] != expected[n]]
    placed = len(expected) - len(missing) - len(wrong)
    yield Finding("tensors", f"{placed} of {len(expected)} have their place", bad=placed < len(expected))
    if missing:
        yield Finding("missing", f"{len(missing)}, first {missing[0]}", bad=True)
    for _, name, shape in wrong[:3]:
        yield Finding("wrong shape", f"{name} is {shape}, expected {expected[canonical(name)]}", bad=True)
    if any(name.endswith(QUANTISED) for name in shapes):
        yield Finding("quantised", "packed weights are not supported; use the published bfloat16 checkpoint", bad=True)
    others = sorted(name for name in shapes if canonical(name) not in expected)
    if others:
        yield Finding("ignored", f"{len(others)} tensors of other parts, first {others[0]}")


def _adapter(adapter: dict[str, Any] | None, config: ModelConfig) -> Finding:
    if adapter is None:
        return Finding("draft adapter", "none inside; give one with --adapter, or train one with train-drafter")
    scale = adapter["lora_alpha"] / adapter["r"]
    modules = ", ".join(sorted(adapter["target_modules"]))
    return Finding("draft adapter", f"{BUNDLED_ADAPTER}: rank {adapter['r']}, scale {scale:g}, on {modules}")


def _memory(config: ModelConfig, device: torch.device) -> Iterator[Finding]:
    dtype = default_dtype(device)
    weights = {kind: weight_bytes(config, kind) for kind in (torch.bfloat16, torch.float32)}
    sizes = ", ".join(f"{size(count)} in {_name(kind)}" for kind, count in weights.items())
    yield Finding("weights", sizes)
    yield Finding("K/V", f"{size(config.kv_bytes_per_token)} a token in bfloat16")
    need, free = weight_bytes(config, dtype), free_bytes(device)
    left = math.floor((free - need) / (config.kv_bytes_per_token * dtype.itemsize / 2))
    if left <= 0:
        fits = f"does not fit: {device} has {size(free)} free, {_name(dtype)} weights take {size(need)}"
        yield Finding("here", fits, bad=True)
    else:
        yield Finding("here", f"runs on {device} in {_name(dtype)}; {size(free)} free, room for {left} tokens of K/V")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e3:.1f} kB"
