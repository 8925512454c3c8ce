"""``recguide doctor`` and ``recguide models``: what is there, what is not, what is broken."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from recguide.kernels.backend import VARIABLE, choose

from recguide import __version__
from recguide.models import embedded
from recguide.models.loader import default_dtype


@pytest.fixture
def ships(monkeypatch):
    """Lets a folder (or None) be the adapter that ships for the embedded model."""

    def ship(path):
        for module in ("recguide.commands.doctor", "recguide.commands.models"):
            monkeypatch.setattr(sys.modules[module], "shipped_adapter", lambda name: path)

    ship(None)
    return ship


def state(run, what):
    """The first column of the row about ``what``."""
    rows = [[cell.strip() for cell in line.split("│")] for line in run.out.splitlines() if "│" in line]
    (found,) = [row[1] for row in rows if row[2] == what]
    return found


def test_doctor_without_a_cached_model(cli, cache, ships):
    run = cli("doctor")
    assert run.status == 0
    assert state(run, embedded.NAME) == "note"
    assert "recguide models fetch" in run.out
    assert not (cache / "models").exists()


def test_doctor_shows_the_machine(cli, cache, ships):
    run = cli("doctor")
    for what in ("recguide", "torch", "device", "dtype", "threads", "linear maps", "attention, signals", "cache"):
        assert state(run, what) in ("ok", "note")
    for found in (__version__, torch.__version__, f"{torch.get_num_threads()} on", str(cache)):
        assert found in run.out


def test_doctor_says_where_other_processes_take_the_cores(cli, cache, ships):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        run = cli("doctor")
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert (run.status, state(run, "load")) == (0, "note")
    assert "OMP_NUM_THREADS=1" in run.out


def test_doctor_says_which_kernels_run_and_why(cli, cache, ships, monkeypatch):
    slow = "note" if default_dtype(torch.device("cpu")) == torch.bfloat16 else "ok"
    forced = {"torch": (0, slow, "RECGUIDE_KERNELS=torch"), "fast": (1, "bad", "RECGUIDE_KERNELS is 'fast'; allowed")}
    for value, (status, shown, words) in forced.items():
        monkeypatch.setenv(VARIABLE, value)
        choose.cache_clear()
        run = cli("doctor")
        assert (run.status, state(run, "attention, signals")) == (status, shown)
        assert words in run.out
    choose.cache_clear()


def test_doctor_on_a_cached_model(cli, cached, ships):
    run = cli("doctor")
    assert run.status == 0
    assert state(run, embedded.NAME) == "ok"
    assert str(cached) in run.out
    assert state(run, "draft adapter") == "note"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_doctor_on_a_tampered_model(cli, cached, ships, name):
    path = cached / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    run = cli("doctor")
    assert run.status == 1
    assert state(run, embedded.NAME) == "bad"
    assert "recguide models fetch --force" in run.out


def test_doctor_on_a_damaged_manifest(cli, cached, ships):
    (cached / "manifest.json").write_text("{}")
    run = cli("doctor")
    assert run.status == 1
    assert state(run, embedded.NAME) == "bad"


def test_doctor_checks_the_adapter(cli, cached, ships, adapter, tmp_path):
    ships(adapter)
    run = cli("doctor")
    assert (run.status, state(run, "draft adapter")) == (0, "ok")
    broken = shutil.copytree(adapter, tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"no")
    ships(broken)
    run = cli("doctor")
    assert (run.status, state(run, "draft adapter")) == (1, "bad")


def test_doctor_finds_the_adapter_of_another_model(cli, cached, ships, tmp_path):
    from recguide.models.loader import load_model
    from tests.helpers import random_adapter

    model = load_model(str(cached), dtype="float32", adapter=None)
    model.fingerprint = "0123456789abcdef"
    random_adapter(model).save(tmp_path / "foreign", {})
    ships(tmp_path / "foreign")
    run = cli("doctor")
    assert (run.status, state(run, "draft adapter")) == (1, "bad")
    assert "0123456789abcdef" in run.out


def test_models_list(cli, cache, ships):
    run = cli("models", "list")
    assert run.status == 0
    assert "not cached: recguide models fetch" in run.out
    assert f"cache: {cache} (moved by RECGUIDE_CACHE)" in run.out


def test_models_list_when_cached(cli, cached, ships, adapter):
    ships(adapter)
    run = cli("models", "list")
    assert str(cached) in run.out
    assert "shipped" in run.out


def test_fetch_does_nothing_when_the_model_is_there(cli, cached, monkeypatch):
    monkeypatch.setattr(embedded, "_download", None)
    before = (cached / "manifest.json").stat().st_mtime_ns
    run = cli("models", "fetch")
    assert run.status == 0
    assert f"is ready in {cached}" in run.out
    assert (cached / "manifest.json").stat().st_mtime_ns == before


def test_demo_on_the_small_model(cli, cached, monkeypatch):
    """All of the demo, on a model that answers nonsense fast."""
    import recguide.models.loader as loader

    monkeypatch.setattr(loader, "shipped_adapter", lambda name: None)
    run = cli("demo")
    assert run.status == 0
    assert "Explain in a few sentences why the sky is blue" in run.out
    assert "tokens per forward" in run.out
    assert "x ar" in run.out
    assert "recguide generate" in run.out


def test_ctrl_c_in_the_demo(cli, cached, monkeypatch, steps):
    import recguide.models.loader as loader

    monkeypatch.setattr(loader, "shipped_adapter", lambda name: None)
    steps.limit = 5
    run = cli("demo")
    assert run.status == 130
    assert "Traceback" not in run.out + run.err
