"""``recguide profile``: measured, cached for this model and device, read from there, drawn."""

import json
import re

import numpy as np
import pytest

from recguide.commands import options
from recguide.control.cost import Axes, stored_identity
from recguide.control.profile import DryStep, identity_of
from recguide.models.loader import load_model

GRID = ("--requests", "1,3", "--rows", "1,4", "--contexts", "16,40", "--repeats", 2)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_table_is_measured_once_and_read_again(cli, small, cache):
    first = cli("profile", *small, *GRID)
    assert first.status == 0
    (path,) = (cache / "profiles").iterdir()
    raw = json.loads(path.read_text())
    times = np.array([raw["causal_ms"], raw["drafting_ms"]])
    assert times.shape == (2, 2, 2, 2)
    assert (times > 0).all()
    again = cli("profile", *small, *GRID)
    assert "--force measures again" in again.out
    assert json.loads(path.read_text()) == raw
    assert cli("profile", *small, *GRID, "--force").status == 0
    assert json.loads(path.read_text()) != raw


def test_the_figure_is_a_page_with_both_views(cli, small, cache, tmp_path):
    assert cli("profile", *small, *GRID, "--html", tmp_path / "cost.html").status == 0
    page = (tmp_path / "cost.html").read_text()
    for words in ("memory-bound", "compute-bound", "ms a row", "3 requests, drafting"):
        assert words in page
    assert not re.search(r'<script[^>]+src="http', page)  # it opens without a network


def test_a_dry_step_has_the_rows_it_is_asked_for(folder, adapter, monkeypatch):
    model = load_model(str(folder), dtype="float32", adapter=adapter)
    seen, forward = [], model.backbone.forward
    monkeypatch.setattr(
        model.backbone, "forward", lambda *a, **k: seen.append((len(a[0]), k["first_draft_row"])) or forward(*a, **k)
    )
    assert DryStep(model, 3, 2, 4, 16)() > 0
    assert DryStep(model, 2, 5, 0, 16)() > 0
    assert seen == [(18, 6), (10, 10)]


def test_the_identity_names_model_dtype_and_device(folder):
    one, other = (identity_of(load_model(str(folder), dtype=d, adapter=None)) for d in ("float32", "bfloat16"))
    assert one.model == other.model
    assert (one.dtype, other.dtype) == ("float32", "bfloat16")
    assert one.profile == other.profile


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--requests", "4,2"), "requests are (4, 2)"),
        (("--rows", "x"), "rows is 'x'"),
        (("--contexts", "16,9000"), "context 9000 is too long"),
        (("--repeats", 0), "repeats is 0"),
    ],
)
def test_bad_numbers_are_told_before_anything_is_measured(cli, small, cache, words, told):
    assert told in cli("profile", *small, *words).error


def bench(cli, small, tmp_path, policies):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello there\n")
    return cli("bench", *small, "--policies", policies, "--prompts", prompts, "--max-new-tokens", 4, "--concurrency", 1)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(options, "QUICK", Axes((1, 2), (1, 2), (16,)))


def test_step_times_are_measured_once_before_a_policy_plans_with_them(cli, small, cache, tmp_path, quick):
    assert bench(cli, small, tmp_path, "ar,linear:4").status == 0
    assert not (cache / "profiles").exists()
    first = bench(cli, small, tmp_path, "ar,paper-adaptive")
    assert "measured once" in first.out
    assert "no cost table" not in first.out
    (path,) = (cache / "profiles").iterdir()
    kept = path.read_text()
    assert "measured once" not in bench(cli, small, tmp_path, "ar,paper-adaptive").out
    assert path.read_text() == kept
    assert cli("profile", *small, *GRID).status == 0  # another grid: not what is asked for here
    assert path.read_text() != kept


def test_where_step_times_cannot_be_kept_nothing_is_measured(cli, small, cache, tmp_path, quick):
    cache.mkdir()
    (cache / "profiles").write_text("a file where the folder should be")
    made = bench(cli, small, tmp_path, "ar,paper-adaptive")
    assert made.status == 0
    assert "step times cannot be kept" in made.out
    assert "steps are taken to cost" in made.out


def test_a_published_sweep_becomes_a_table_to_simulate_with(cli, tmp_path):
    sweep = tmp_path / "sweep.csv"
    sweep.write_text("block_size,concurrency,draft_ms,verify_ms\n8,1,5,4\n16,1,6,4.8\n8,2,9,8\n16,2,12,10.4\n")
    out = tmp_path / "t.json"
    assert cli("profile", "--sweep", sweep, "--device-name", "X", "--requests", "1,2", "--out", out).status == 0
    assert stored_identity(out).profile == "X"
    drawn = cli("profile", "--sweep", sweep, "--requests", "1,2", "--out", out, "--html", tmp_path / "t.html")
    assert drawn.status == 0 and "plotly" in (tmp_path / "t.html").read_text()
    run = cli("profile", "--sweep", sweep)
    assert run.status == 2 and "--sweep needs --out" in run.err
