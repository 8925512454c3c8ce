"""``recguide models check`` and ``make-tiny``: a checkpoint in the published layout, looked into and run."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from recguide.models import check as check_module
from recguide.models.make_tiny import make_tiny


@pytest.fixture
def tiny(tmp_path):
    make_tiny("nld", tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_tiny_checkpoint_is_written_checked_and_run(cli, tmp_path):
    folder = tmp_path / "tiny"
    assert cli("models", "make-tiny", folder, "--like", "nld", "--max-shard-size", "50KB").status == 0
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    checked = cli("models", "check", folder)
    assert checked.status == 0
    for words in ("nemotron_labs_diffusion", "21 of 21", "mask 100, EOS 11", "published block 32", "scale 4", "o_proj"):
        assert words in checked.out
    words = ("generate", "Hello", "--model", folder, "--dtype", "float32", "--max-new-tokens", 24)
    texts = {
        policy: cli(*words, "--policy", policy).out for policy in ("ar", "linear:8", "linear:8:0.5", "quadratic:4")
    }
    assert len(set(texts.values())) == 1
    assert texts["ar"].strip()
    assert "(linear:32)" in cli(*words).err  # the published block is the default


def test_a_drafter_is_trained_on_the_published_layout(cli, tiny, tmp_path):
    words = ("--model", tiny, "--dtype", "float32")
    sizes = ("--dialogues", 10, "--steps", 2, "--rank", 2, "--rows", 32)
    assert cli("train-drafter", tmp_path / "run", *words, *sizes).status == 0
    generate = ("generate", "Hello", *words, "--max-new-tokens", 12)
    own = cli(*generate, "--adapter", tmp_path / "run" / "adapter", "--policy", "linear:4")
    assert own.status == 0
    assert own.out == cli(*generate, "--policy", "ar").out


def test_the_same_seed_gives_the_same_checkpoint_and_another_gives_another(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_tiny("nld", tmp_path / name, seed)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["diffusion_head.weight"], c["diffusion_head.weight"])


def test_thinking_on_and_off(cli, tiny, monkeypatch):
    words = ("generate", "Hi", "--model", tiny, "--dtype", "float32", "--max-new-tokens", 8, "--policy", "linear:4")
    from recguide.engine.engine import Engine

    prompts, prepare = [], Engine.prepare
    monkeypatch.setattr(Engine, "prepare", lambda self, p, q=None: prompts.append(p) or prepare(self, p, q))
    for option in ([], ["--no-thinking"], ["--thinking"]):
        assert cli(*words, *option).status == 0
    plain, off, on = prompts
    assert plain == off
    assert off[-2:] == [12, 13]  # an empty pair of think marks
    assert on[: len(off) - 2] == off[:-2] and on[len(off) - 2] == 12 and 13 not in on


def test_a_budget_of_thinking_is_kept(cli, tiny, tmp_path):
    out = tmp_path / "out.jsonl"
    words = ("generate", "Hi", "--model", tiny, "--dtype", "float32", "--thinking", "--out", out)
    assert cli(*words, "--max-new-tokens", 12, "--max-thinking-tokens", 5, "--policy", "quadratic:4").status == 0
    assert 13 in json.loads(out.read_text())["tokens"][:6]


def test_a_budget_needs_a_model_that_thinks(cli, small):
    run = cli("generate", "Hi", *small, "--max-thinking-tokens", 5)
    assert "has no </think> token" in run.error


def damage_missing(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def damage_shape(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.norm.weight"] = torch.ones(47)
    save_file(tensors, folder / "model.safetensors")


def damage_quantised(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layers.0.mlp.up_proj.scales"] = torch.ones(3)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_missing, ("20 of 21", "model.layers.1.mlp.up_proj.weight")),
        (damage_shape, ("20 of 21", "encoder.norm.weight is (47,), expected (48,)")),
        (damage_quantised, ("packed weights are not supported",)),
        (lambda folder: (folder / "tokenizer.json").unlink(), ("tokenizer.json is missing",)),
    ],
    ids=["missing", "shape", "quantised", "tokenizer"],
)
def test_what_would_not_run_is_said_and_fails(cli, tiny, damage, words):
    damage(tiny)
    run = cli("models", "check", tiny)
    assert run.status == 1
    for word in words:
        assert word in run.out
    assert "bad" in run.out


def test_a_model_that_is_too_large_is_told_before_it_is_loaded(cli, tiny, monkeypatch):
    monkeypatch.setattr("recguide.models.loader.free_bytes", lambda device: 1000)
    monkeypatch.setattr(check_module, "free_bytes", lambda device: 1000)
    checked = cli("models", "check", tiny)
    assert checked.status == 1
    assert "does not fit" in checked.out
    assert "free memory, choose another device" in cli("generate", "Hi", "--model", tiny).error


def test_published_sizes_without_any_weights(tmp_path):
    """3B, 8B and 14B from their configurations alone: parameters, tensors and K/V as published."""
    sizes = {
        "3.83": (3072, 9216, 26, 237, 106_496),
        "8.49": (4096, 14336, 34, 309, 139_264),
        "13.51": (5120, 16384, 40, 363, 163_840),
    }
    from recguide.models.checkpoint import expected_tensors, weight_bytes
    from recguide.models.config import from_hf
    from recguide.models.make_tiny import NLD_CONFIG

    for billions, (hidden, inner, layers, tensors, kv) in sizes.items():
        shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": 131072}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
        config = from_hf(NLD_CONFIG | shape | heads)
        assert f"{weight_bytes(config, torch.uint8) / 1e9:.2f}" == billions
        assert len(expected_tensors(config)) == tensors
        assert config.kv_bytes_per_token == kv


@pytest.mark.parametrize("name", ["nonsense", "./gone"])
def test_names_that_lead_nowhere(cli, name):
    assert "neither a folder nor a hub name" in cli("models", "check", name).error


def test_make_tiny_keeps_what_is_there(cli, tiny):
    assert "is not empty" in cli("models", "make-tiny", tiny).error
    assert "family 'gpt' is unknown; known: nld" in cli("models", "make-tiny", tiny.parent / "x", "--like", "gpt").error


class Hub(BaseHTTPRequestHandler):
    """The part of a hub that serves the files of one repository, ranges included; counts the bytes it sent."""

    root: Path
    sent = 0

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.root / self.path.split("/resolve/main/")[-1]
        if "/resolve/main/" not in self.path or not path.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, span = path.read_bytes(), re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = content[int(span[1]) : int(span[2]) + 1] if span else content
        self.send_response(206 if span else 200)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self.wfile.write(part)
            type(self).sent += len(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """A hub on this machine that holds a checkpoint far larger than what a check should fetch."""
    make_tiny("nld", tmp_path / "hub", intermediate_size=40_000)
    handler = type("OneRepository", (Hub,), {"root": tmp_path / "hub", "sent": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def check_remotely(name, endpoint, home):
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "COLUMNS": "300", "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-m", "recguide.cli", "models", "check", name]
    return subprocess.run(words, env=env, capture_output=True, text=True)


def test_a_checkpoint_on_a_hub_is_checked_without_its_weights(hub, tmp_path):
    handler, endpoint = hub
    ended = check_remotely("someone/model", endpoint, tmp_path / "home")
    assert ended.returncode == 0, ended.stderr
    for words in ("21 of 21", "linear_spec_lora: rank 8", "published block 32", "tokenizer"):
        assert words in ended.stdout
    assert 0 < handler.sent < 200_000 < (handler.root / "model.safetensors").stat().st_size / 50


def test_a_hub_that_does_not_answer_is_told_in_one_line(tmp_path):
    ended = check_remotely("someone/model", "http://127.0.0.1:9", tmp_path / "home")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: model 'someone/model': no such folder here, and the hub gave")
    assert "Traceback" not in ended.stderr
