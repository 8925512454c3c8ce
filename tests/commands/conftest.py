"""The command line in this process, on a small model folder in Hugging Face layout with a tokenizer of its own."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from recguide.cli import main
from recguide.engine.engine import Engine
from recguide.models import embedded
from recguide.models.adapter import load_adapter
from recguide.models.checkpoint import file_sha256
from recguide.models.loader import load_model
from tests.helpers import random_adapter

PROMPTS = ("Why is the sky blue?", "Name a river in Africa.", "Count to five, slowly.")


class Run(NamedTuple):
    """How a command ended: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The message of a user error: one line at the end of stderr, with nothing but notes around it."""
        lines = self.err.splitlines()
        assert self.status == 2, self
        assert [line for line in lines if not line.startswith("note:")] == lines[-1:], self
        assert lines[-1].startswith("error: "), self
        assert "Traceback" not in self.out + self.err
        return lines[-1].removeprefix("error: ")


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs ``recguide`` with the given words, as the installed script does. Any other way out than an exit raises."""
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")

    def run(*words: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["recguide", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Run(ended.value.code or 0, *capsys.readouterr())

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def own_folder(folder, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


@pytest.fixture(scope="session")
def adapter(folder, tmp_path_factory) -> Path:
    """A random draft adapter of the small model, right about as often as not."""
    path = tmp_path_factory.mktemp("adapter")
    model = load_model(str(folder), dtype="float32", adapter=None)
    made = random_adapter(model)
    made.mask_embedding.data[0] = 1.0
    made.save(path, {})
    load_adapter(path, model.config, model.fingerprint)
    return path


@pytest.fixture
def small(folder, adapter) -> list[str]:
    """Options that choose the small model in float32, with its adapter."""
    return ["--model", str(folder), "--dtype", "float32", "--adapter", str(adapter)]


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cached(cache, folder) -> Path:
    """The small model in the place of the embedded one, with its manifest."""
    path = Path(shutil.copytree(folder, embedded.embedded_folder()))
    names = ("model.safetensors", "tokenizer.json", "config.json")
    manifest = {"source": "a test", "sha256": {name: file_sha256(path / name) for name in names}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture
def spoiled_folder(own_folder) -> Path:
    """A model whose logits are not finite."""
    from safetensors.torch import load_file, save_file

    weights = load_file(own_folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, own_folder / "model.safetensors", metadata={"format": "pt"})
    return own_folder


@pytest.fixture
def steps(monkeypatch):
    """Counts the engine's steps, and raises KeyboardInterrupt before step number ``limit`` (0 is the first)."""

    class Steps:
        count, limit = 0, None

    plain = Engine.step

    def step(engine):
        if Steps.count == Steps.limit:
            raise KeyboardInterrupt
        Steps.count += 1
        return plain(engine)

    monkeypatch.setattr(Engine, "step", step)
    return Steps
