"""Our engine beside llama.cpp's: runs in turn, paired by repeat, every policy shown. No server is started here."""

import io
import json
import statistics

import pytest
from rich.console import Console

from recguide.bench import versus as versus_module
from recguide.bench.llamacpp import OTHER
from recguide.bench.measure import Bench, BenchSettings
from recguide.bench.prompts import Prompt
from recguide.bench.versus import Versus, table
from recguide.errors import RecGuideError
from tests.helpers import small_model

POLICIES = ("ar", "linear:4")
PROMPTS = [Prompt("a", text="\x01\x02"), Prompt("b", text="\x03")]


@pytest.fixture
def versus():
    settings = BenchSettings(policies=POLICIES, concurrency=(1, 2), max_new_tokens=4, repeats=2, max_context=64)
    return Versus(Bench(small_model(), PROMPTS, settings), threads=2)


def ours(versus, rates):
    """Measure for real, then give each run the rate of the test: (policy, concurrency, repeat) -> tokens/s."""
    for (policy, level, repeat), rate in rates.items():
        versus.bench.measure(policy, level, repeat)["aggregate_tok_s"] = rate


def theirs(versus, rates):
    versus.other_runs = [{"concurrency": c, "repeat": r, "aggregate_tok_s": rate} for (c, r), rate in rates.items()]


def test_repeats_alternate(versus):
    assert versus._order(0) == (OTHER, "ar", "linear:4")
    assert versus._order(1) == ("linear:4", "ar", OTHER)


def test_ratios_are_paired_by_repeat(versus):
    """The machine was twice as fast in the second repeat; a ratio of medians would say 1.67."""
    theirs(versus, {(1, 0): 10.0, (1, 1): 20.0})
    ours(versus, {("ar", 1, 0): 5.0, ("ar", 1, 1): 10.0, ("linear:4", 1, 0): 20.0, ("linear:4", 1, 1): 30.0})
    row = versus._row(1)
    assert row["concurrency"] == 1
    assert row[OTHER] == 15.0
    assert row["best"] == "linear:4"
    assert row["policies"]["ar"] == {"aggregate_tok_s": 7.5, "ratio": 0.5, "ratio_min": 0.5, "ratio_max": 0.5}
    linear = row["policies"]["linear:4"]
    assert (linear["ratio"], linear["ratio_min"], linear["ratio_max"]) == (1.75, 1.5, 2.0)
    assert linear["aggregate_tok_s"] == statistics.median([20.0, 30.0])


def test_levels_do_not_mix(versus):
    theirs(versus, {(1, 0): 10.0, (2, 0): 100.0})
    ours(versus, {("ar", 1, 0): 20.0, ("ar", 2, 0): 50.0})
    rows = versus.result()["versus"]
    assert [row["concurrency"] for row in rows] == [1, 2]
    assert [row["policies"]["ar"]["ratio"] for row in rows] == [2.0, 0.5]


def test_an_interrupted_comparison_pairs_what_is_there(versus):
    theirs(versus, {(1, 0): 10.0})
    row = versus._row(1)
    assert (row["best"], row["policies"]) == (None, {})
    ours(versus, {("linear:4", 1, 0): 15.0, ("linear:4", 1, 1): 90.0})
    assert versus._row(1)["policies"]["linear:4"]["ratio"] == 1.5
    assert "ar" not in versus._row(1)["policies"]
    json.dumps(versus.result())


def test_the_result_holds_both_engines(versus):
    theirs(versus, {(1, 0): 10.0})
    ours(versus, {("ar", 1, 0): 15.0})
    versus.about = {"xllamacpp": "1"}
    result = versus.result()
    assert result[OTHER] == {"xllamacpp": "1", "threads": 2, "runs": versus.other_runs}
    assert result["runs"][0]["policy"] == "ar"
    assert set(result) >= {"schema", "provenance", "model", "prompts", "settings", "summary", "versus"}


def shown(result):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table(result))
    lines = [line for line in console.export_text().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_the_table_shows_every_policy(versus):
    theirs(versus, {(1, 0): 10.0, (2, 0): 100.0})
    ours(versus, {("ar", 1, 0): 5.0, ("linear:4", 1, 0): 20.0, ("ar", 2, 0): 50.0})
    assert shown(versus.result()) == [
        ["1", "10", "5", "20", "2.00x (linear:4)"],
        ["2", "100", "50", "-", "0.50x (ar)"],
    ]


def test_the_table_before_our_first_run(versus):
    theirs(versus, {(1, 0): 10.0})
    assert shown(versus.result()) == [["1", "10", "-", "-", "-"]]


@pytest.mark.parametrize("words", [{"json_out": "FILE/out.json"}, {"policies": "warp"}, {"threads": 0}])
def test_faults_are_found_before_a_model_is_loaded(monkeypatch, tmp_path, words):
    def load(*_):
        raise AssertionError("a model was loaded before the fault was found")

    monkeypatch.setattr(versus_module, "open_model", load)
    (tmp_path / "FILE").write_text("")
    if "json_out" in words:
        words = {"json_out": tmp_path / words["json_out"]}
    defaults = {"policies": "ar", "concurrency": "1", "prompts": None, "limit": 1, "max_new_tokens": 4, "repeats": 1}
    with pytest.raises(RecGuideError):
        versus_module.main(**(defaults | {"threads": 1, "max_context": 64, "json_out": None} | words))
