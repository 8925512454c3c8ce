"""Weights in Hugging Face layout: read from a folder of safetensors, written atomically, fingerprinted.

The fingerprint is over names, shapes and the first 4096 elements of every tensor as stored: cheap for any size, and the
same whatever dtype the weights are loaded in.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from recguide.errors import RecGuideError
from recguide.models.config import ModelConfig

SAMPLE_ELEMENTS = 4096


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a RecGuideError that names it."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecGuideError(f"{path}: not found; a model folder holds config.json, tokenizer and weights") from None
    except (OSError, ValueError) as fault:
        raise RecGuideError(f"{path}: not readable as JSON ({fault})") from None
    if not isinstance(value, dict):
        raise RecGuideError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def weight_files(folder: Path) -> list[Path]:
    """The model's own safetensors files; adapter files that lie beside them are not weights."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict):
            raise RecGuideError(f"{index}: has no weight_map; fetch the checkpoint again")
        return [folder / name for name in sorted(set(named.values()))]
    files = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("adapter"))
    if not files:
        raise RecGuideError(f"{folder}: no *.safetensors weights; convert the checkpoint or choose another folder")
    return files


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor the backbone needs, by Hugging Face Llama name."""
    from recguide.models.adapter import projection_shapes

    hidden = (config.hidden_size,)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in projection_shapes(config).items()}
        shapes |= {prefix + "input_layernorm.weight": hidden, prefix + "post_attention_layernorm.weight": hidden}
    shapes["model.norm.weight"] = hidden
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """All tensors of ``expected_tensors`` in ``dtype`` on ``device``; RecGuideError on damage or a wrong shape."""
    weights: dict[str, Tensor] = {}
    shapes = expected_tensors(config)
    for path in weight_files(folder):
        try:
            with safe_open(path, "pt", device=str(device)) as stored:
                for name in set(stored.keys()) & set(shapes):
                    weights[name] = _checked(stored.get_tensor(name), name, shapes[name], path).to(dtype)
        except (SafetensorError, OSError) as fault:
            raise RecGuideError(f"{path}: weights are damaged ({fault}); delete the file and fetch it again") from None
    missing = sorted(set(shapes) - set(weights))
    if missing:
        raise RecGuideError(f"{folder}: {len(missing)} tensors missing, first {missing[0]}")
    return weights


def _checked(tensor: Tensor, name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise RecGuideError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """16 hex digits that identify in-memory weights."""
    return _digest((name, t.shape, t.reshape(-1)[:SAMPLE_ELEMENTS].float()) for name, t in sorted(tensors.items()))


def fingerprint_folder(folder: Path) -> str:
    """16 hex digits that identify the weights of a folder, without loading them whole."""
    return _digest(_samples(folder))


def _samples(folder: Path) -> Iterable[tuple[str, Iterable[int], Tensor]]:
    for path in weight_files(folder):
        try:
            with safe_open(path, "pt") as stored:
                for name in sorted(stored.keys()):
                    part = stored.get_slice(name)
                    shape = part.get_shape()
                    rows = -(-SAMPLE_ELEMENTS // math.prod(shape[1:]))
                    yield name, shape, part[:rows].reshape(-1)[:SAMPLE_ELEMENTS].float()
        except (SafetensorError, OSError) as fault:
            raise RecGuideError(f"{path}: weights are damaged ({fault}); delete the file and fetch it again") from None


def _digest(samples: Iterable[tuple[str, Iterable[int], Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, shape, sample in samples:
        digest.update(f"{name}{list(shape)}".encode())
        digest.update(sample.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
