"""Weights in Hugging Face layout: read from a folder of safetensors, written atomically, fingerprinted.

The fingerprint is over names, shapes and the first 4096 elements of every tensor as stored: cheap for any size, and the
same whatever dtype the weights are loaded in.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
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


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of all tensors of a backbone."""
    return dtype.itemsize * sum(math.prod(shape) for shape in expected_tensors(config).values())


def canonical(name: str) -> str:
    """The Hugging Face Llama name of a stored tensor, as ``expected_tensors`` has it.

    Nemotron-Labs-Diffusion is published with ``encoder.*`` and ``diffusion_head``; vision models and repacks put
    ``language_model.`` in front.
    """
    for prefix in ("model.language_model.", "language_model."):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            name = name if name.startswith(("model.", "encoder.", "lm_head.", "diffusion_head.")) else f"model.{name}"
    return name.replace("encoder.", "model.", 1).replace("diffusion_head.", "lm_head.", 1)


class Weights(Mapping[str, Tensor]):
    """The tensors of ``expected_tensors``, each read from its file when it is asked for, and not kept.

    Names and shapes are checked at once. On a CPU a tensor in the wanted dtype is a view of the mapped file: a
    backbone that packs or fuses it leaves no second copy behind.
    """

    def __init__(self, folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        self._dtype, self._device = dtype, device
        self._places: dict[str, tuple[Path, str]] = {}
        shapes = expected_tensors(config)
        for path, name, shape in stored_shapes(folder):
            known = canonical(name)
            if known not in shapes:
                continue
            if shape != shapes[known]:
                raise RecGuideError(f"{path}: {name} has shape {shape}, expected {shapes[known]}")
            self._places[known] = (path, name)
        missing = sorted(set(shapes) - set(self._places))
        if missing:
            raise RecGuideError(f"{folder}: {len(missing)} tensors missing, first {missing[0]}")

    def __getitem__(self, name: str) -> Tensor:
        path, stored_name = self._places[name]
        with opened(path, str(self._device)) as stored:
            return stored.get_tensor(stored_name).to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def stored_shapes(folder: Path) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """File, name and shape of every tensor of a model folder, from the headers alone."""
    for path in weight_files(folder):
        with opened(path) as stored:
            for name in sorted(stored.keys()):
                yield path, name, tuple(stored.get_slice(name).get_shape())


@contextlib.contextmanager
def opened(path: Path, device: str = "cpu") -> Iterator[safe_open]:
    """A safetensors file; damage becomes a RecGuideError that names it."""
    try:
        with safe_open(path, "pt", device=device) as stored:
            yield stored
    except (SafetensorError, OSError) as fault:
        raise RecGuideError(f"{path}: weights are damaged ({fault}); delete the file and fetch it again") from None


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """16 hex digits that identify in-memory weights."""
    return _digest((name, t.shape, t.reshape(-1)[:SAMPLE_ELEMENTS].float()) for name, t in sorted(tensors.items()))


def fingerprint_folder(folder: Path) -> str:
    """16 hex digits that identify the weights of a folder, without loading them whole."""
    return _digest(_samples(folder))


def _samples(folder: Path) -> Iterable[tuple[str, Iterable[int], Tensor]]:
    for path in weight_files(folder):
        with opened(path) as stored:
            for name in sorted(stored.keys()):
                part = stored.get_slice(name)
                shape = part.get_shape()
                rows = -(-SAMPLE_ELEMENTS // math.prod(shape[1:]))
                yield name, shape, part[:rows].reshape(-1)[:SAMPLE_ELEMENTS].float()


def _digest(samples: Iterable[tuple[str, Iterable[int], Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, shape, sample in samples:
        digest.update(f"{name}{list(shape)}".encode())
        digest.update(sample.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
