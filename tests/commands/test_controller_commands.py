"""``recguide train``, ``export`` and ``replay`` end to end on a small model."""

import json

import numpy as np
import pytest

from recguide.control.controller import load_controller
from recguide.control.cost import Axes, CostTable, Identity
from tests.controllers import handmade


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "p.txt"
    path.write_text("\n".join(f"Tell me of {word} and more." for word in "abcdefghijklmnopqrstuvwx"))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_record_train_and_replay(cli, folder, prompts, runs):
    model = ["--model", folder, "--dtype", "float32"]
    assert cli("trace", "record", runs / "log", *model, "--prompts", prompts, "--max-new-tokens", 40).status == 0
    out = runs / "c.safetensors"
    trained = cli("train", runs / "log", "--out", out)
    assert trained.status == 0, trained
    for word in ("mismatch", "utility", "second", "AUC", "controller:"):
        assert word in trained.out
    assert load_controller(out).places == 8
    assert json.loads(out.with_suffix(".json").read_text())["models"]["mismatch"]["auc"]
    assert out.with_suffix(".html").exists()
    played = cli("replay", runs / "log", *model, "--policy", "ar", "--controller", out, "--json", runs / "r.json")
    assert played.status == 0, played
    assert "tokens a decision" in played.out and "worst decisions" in played.out and "basis" in played.out
    content = json.loads((runs / "r.json").read_text())
    assert len(content["interval"]) == 2 and content["decisions"]
    run = cli("generate", "hello", *model, "--policy", f"recguide:{out}", "--max-new-tokens", 8)
    assert run.status == 0, run


def test_training_faults_are_one_line(cli, tmp_path):
    assert "holds no decision log" in cli("train", tmp_path, "--out", tmp_path / "c.safetensors").error
    assert "unknown; known" in cli("train", tmp_path, "--out", tmp_path / "c.safetensors", "--drop", "luck").error


@pytest.mark.parametrize("to", ["linearspec", "vllm", "tensorrt-llm", "sglang"])
def test_export(cli, tmp_path, to):
    handmade("abc", 1).save(tmp_path / "c.safetensors")
    axes = Axes((1, 8, 32), (1, 8), (128,))
    causal = np.array([[[20.0], [22.0]], [[22.0], [50.0]], [[40.0], [160.0]]])
    identity = Identity(model="abc", adapter="lora", dtype="float32", profile="x")
    CostTable(identity, axes, causal, causal * 1.1, {}).save(tmp_path / "cost.json")
    words = ["export", tmp_path / "c.safetensors", "--to", to, "--profile", tmp_path / "cost.json"]
    shown = cli(*words)
    assert shown.status == 0 and "loss" in shown.err
    assert cli(*words, "--out", tmp_path / "out").status == 0
    beside = json.loads((tmp_path / "out.provenance.json").read_text())
    assert set(beside["predicted_loss"]) == {"1", "2", "4", "8", "16", "32"}


def test_export_faults_are_one_line(cli, tmp_path):
    handmade().save(tmp_path / "c.safetensors")
    words = ["export", tmp_path / "c.safetensors"]
    assert "unknown" in cli(*words, "--to", "nowhere").error
    assert "no cost table of model abc" in cli(*words, "--to", "vllm").error
    assert "ascending" in cli(*words, "--to", "vllm", "--loads", "4,2").error
    assert "no controller file" in cli("export", tmp_path / "none", "--to", "vllm").error
