"""The controller file: the learned models, drafts to price plans by, and everything needed to refuse the wrong one.

One safetensors file, no pickle. Its metadata is JSON: schema, feature names in order, fingerprints, report, versions
and a digest over all of it; its golden rows are evaluated when it is loaded. Needs numpy only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recguide.control import features
from recguide.control.scoring import Scorer
from recguide.control.solve import Samples
from recguide.errors import RecGuideError

SCHEMA = 2
COLUMNS = {"mismatch": features.MISMATCH, "second": features.MISMATCH, "utility": features.UTILITY}
GOLDEN_TOLERANCE = 1e-6
SAMPLES = ("open", "known", "tail", "open_bucket", "known_bucket", "tail_bucket", "second")


@dataclass(frozen=True)
class Controller:
    """What was learned of one model and its drafter.

    ``mismatch``: P(draft accepted | reached). ``second``: P(second-best is the verifier's | rejected there).
    ``utility``: P(accepted | reached) of a block not drafted yet. ``edges`` cut the drafts that utility expects to be
    accepted into history buckets. ``usual`` [GROUPS, K] is the share of accepted among reached drafts, as seen in
    training, of each group of kinds.
    ``golden`` holds rows and expected outputs of each scorer.
    """

    model: str
    draft_shift: int
    mismatch: Scorer
    second: Scorer
    utility: Scorer
    open_chance: float
    samples: Samples
    edges: np.ndarray
    usual: np.ndarray
    golden: Mapping[str, tuple[np.ndarray, np.ndarray]]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """Draft positions it knows of; no plan goes beyond."""
        return self.samples.open.shape[1]

    @property
    def scorers(self) -> dict[str, Scorer]:
        return {name: getattr(self, name) for name in COLUMNS}

    def check_golden(self) -> None:
        """RecGuideError when a scorer does not give what it gave when it was made."""
        for name, scorer in self.scorers.items():
            rows, expected = self.golden[name]
            off = float(np.abs(scorer(rows) - expected).max())
            if not off <= GOLDEN_TOLERANCE:
                raise RecGuideError(f"golden rows of {name} differ by {off:.3g}; the file and this version disagree")

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        tensors = self._tensors()
        metadata = self._metadata()
        metadata["digest"] = _digest(tensors, metadata)
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, partial, metadata={k: json.dumps(v) for k, v in metadata.items()})
            partial.replace(path)
        except (OSError, SafetensorError) as fault:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise RecGuideError(f"{path}: cannot write ({fault}); choose another place or free space") from None

    def _tensors(self) -> dict[str, np.ndarray]:
        tensors = {f"samples.{name}": getattr(self.samples, name) for name in SAMPLES}
        tensors |= {"edges": self.edges, "usual": self.usual}
        for name, scorer in self.scorers.items():
            tensors |= {f"{name}.{key}": np.asarray(value) for key, value in scorer.arrays().items()}
            rows, expected = self.golden[name]
            tensors |= {f"golden.{name}.rows": rows, f"golden.{name}.expected": expected}
        return {name: np.array(value, order="C") for name, value in tensors.items()}

    def _metadata(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "feature_schema": features.SCHEMA,
            "features": _columns(),
            "model": self.model,
            "draft_shift": self.draft_shift,
            "open_chance": self.open_chance,
            "buckets": self.samples.buckets,
            "about": dict(self.about),
        }


def _columns() -> dict[str, list[list[str]]]:
    """Name, unit and dtype of every feature, in order."""
    return {name: [[f.name, f.unit, "float32"] for f in columns] for name, columns in COLUMNS.items()}


def _digest(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> str:
    """SHA-256 over all values: one changed byte anywhere shows."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def load_controller(path: Path) -> Controller:
    """Read and check a controller file. RecGuideError names what does not fit."""
    tensors, metadata = _read(path)
    try:
        digest = metadata.pop("digest")
        _same(path, "schema", metadata["schema"], SCHEMA)
        _same(path, "feature schema", metadata["feature_schema"], features.SCHEMA)
        if digest != _digest(tensors, metadata):
            raise RecGuideError(f"{path}: damaged, its digest does not match; export the controller again")
        _same_features(path, metadata["features"])
        controller = _assemble(tensors, metadata)
    except (KeyError, TypeError, ValueError) as fault:
        if isinstance(fault, RecGuideError):
            raise fault if str(path) in str(fault) else RecGuideError(f"{path}: {fault}") from None
        raise RecGuideError(f"{path}: not a controller file ({fault!r})") from None
    try:
        controller.check_golden()
    except RecGuideError as fault:
        raise RecGuideError(f"{path}: {fault}") from None
    return controller


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, "numpy") as stored:
            metadata = {name: json.loads(text) for name, text in (stored.metadata() or {}).items()}
            return {name: stored.get_tensor(name) for name in stored.keys()}, metadata  # noqa: SIM118, not a dict
    except FileNotFoundError:
        raise RecGuideError(f"{path}: no controller file; 'recguide train' makes one") from None
    except (OSError, SafetensorError, ValueError) as fault:
        raise RecGuideError(f"{path}: not a controller file, or damaged ({fault})") from None


def _same(path: Path, name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise RecGuideError(f"{path}: {name} is {found}, this version reads {expected}; train a controller again")


def _same_features(path: Path, found: Mapping[str, list[list[str]]]) -> None:
    for name, expected in _columns().items():
        for place, (theirs, ours) in enumerate(zip(found[name], expected, strict=False)):
            if list(theirs) != ours:
                raise RecGuideError(f"{path}: feature {place} of {name} is {theirs[0]}, this version's is {ours[0]}")
        _same(path, f"number of features of {name}", len(found[name]), len(expected))


def _assemble(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Controller:
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition(".")
        parts.setdefault(group, {})[rest] = value
    golden = {n: (tensors[f"golden.{n}.rows"], tensors[f"golden.{n}.expected"]) for n in COLUMNS}
    return Controller(
        model=metadata["model"],
        draft_shift=metadata["draft_shift"],
        **{name: Scorer.from_arrays(parts[name]) for name in COLUMNS},
        open_chance=metadata["open_chance"],
        samples=Samples(**{name: parts["samples"][name] for name in SAMPLES}, buckets=metadata["buckets"]),
        edges=tensors["edges"],
        usual=tensors["usual"],
        golden=golden,
        about=metadata["about"],
    )
