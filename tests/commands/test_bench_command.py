"""``recguide bench`` end to end: the table, the JSON with every figure, Ctrl-C keeps what was done."""

import json

import pytest

POLICIES = "ar,linear:4,overlap:4:1"
FIGURES = {
    "policy",
    "concurrency",
    "aggregate_tok_s",
    "per_request_tok_s",
    "tpf",
    "rows_per_token",
    "mean_acceptance_length",
    "conditional_acceptance",
    "reached",
    "phases_s",
}


@pytest.fixture
def words(small, prompts):
    quick = ["--max-new-tokens", 12, "--concurrency", "1,2", "--repeats", 2, "--policies", POLICIES]
    return ["bench", *small, "--prompts", prompts, *quick]


def test_the_result_file_holds_every_figure(cli, words, tmp_path, folder):
    path = tmp_path / "new" / "result.json"
    run = cli(*words, "--json", path)
    assert run.status == 0
    result = json.loads(path.read_text())
    assert len(result["runs"]) == 3 * 2 * 2
    assert len(result["summary"]) == 3 * 2
    assert all(set(entry) >= FIGURES for entry in result["runs"])
    assert result["prompts"]["count"] == 3
    assert len(result["prompts"]["fingerprint"]) == len(result["model"]["fingerprint"]) == 16
    assert result["model"]["dtype"] == "float32"
    assert result["settings"]["policies"] == POLICIES.split(",")
    assert result["provenance"]["command"].startswith("recguide bench --model")
    assert not list(tmp_path.rglob("*.partial"))


def test_two_adapters_can_be_told_apart_in_the_result(cli, words, tmp_path, folder, adapter):
    """Both folders may be called ``adapter``; the numbers depend on which one drafted."""
    from recguide.models.loader import load_model
    from tests.helpers import random_adapter

    other = tmp_path / adapter.name
    random_adapter(load_model(str(folder), dtype="float32", adapter=None), seed=9).save(other, {})
    found = []
    for path in (adapter, other):
        cli(*words, "--adapter", path, "--json", tmp_path / "result.json", "--repeats", 1, "--concurrency", 1)
        found.append(json.loads((tmp_path / "result.json").read_text())["model"])
    assert found[0] != found[1]


def test_the_table_shows_every_policy_and_what_was_measured(cli, words):
    run = cli(*words)
    shown = " ".join(run.out.split())  # the caption wraps
    for word in (*POLICIES.split(","), "x ar", "tokens /", "accepted", "3 prompts x 12 tokens", "median of 2"):
        assert word in shown
    assert "float32" in run.out
    assert run.err == ""


def test_a_path_with_brackets_is_named_in_the_caption(cli, words, folder, tmp_path):
    import shutil

    odd = tmp_path / "model [old]"
    shutil.copytree(folder, odd)
    words[words.index("--model") + 1] = odd
    run = cli(*words, "--repeats", 1, "--concurrency", 1)
    assert run.status == 0
    assert "model [old]" in " ".join(run.out.split())


def count_steps(cli, words, steps):
    """Steps before the first measured run and in all: the runs are the same every time."""
    assert cli(*words).status == 0
    return steps.count


def test_ctrl_c_keeps_the_finished_runs_and_what_was_done_of_others(cli, words, steps, tmp_path):
    total = count_steps(cli, words, steps)
    path = tmp_path / "result.json"
    steps.count, steps.limit = 0, total - 2
    run = cli(*words, "--json", path)
    assert run.status == 130
    assert "x ar" in run.out
    assert "linear:4" in run.out
    assert "interrupted" in run.out
    runs = json.loads(path.read_text())["runs"]
    cut = [entry for entry in runs if entry.get("interrupted")]
    assert len(runs) == 12 and 1 <= len(cut) <= 3
    assert runs[-len(cut) :] == cut and {(entry["concurrency"], entry["repeat"]) for entry in cut} == {(2, 1)}
    assert "Traceback" not in run.err


def test_ctrl_c_in_the_first_run_keeps_what_was_done(cli, words, steps, tmp_path):
    words[words.index("--policies") + 1] = "ar"
    path, once = tmp_path / "result.json", ["--repeats", 1, "--concurrency", 1]
    total = count_steps(cli, [*words, *once], steps)
    steps.count, steps.limit = 0, total - 2
    assert cli(*words, *once, "--json", path).status == 130
    (run,) = json.loads(path.read_text())["runs"]
    assert run["interrupted"] and run["tokens"] > 0 and run["finished"]["abort"] == 1
    assert run["aggregate_tok_s"] == pytest.approx(run["tokens"] / run["wall_s"])


def test_ctrl_c_before_the_first_run_is_quiet(cli, words, steps, tmp_path):
    steps.limit = 3
    run = cli(*words, "--json", tmp_path / "result.json")
    assert run.status == 130
    assert "Traceback" not in run.out + run.err
    assert not (tmp_path / "result.json").exists()


def test_a_simulated_device_gives_the_same_figures_every_time(cli, words, small, tmp_path, monkeypatch):
    """Steps take what another table says: twice as slow a device gives half the tokens a second."""
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    grid = ("--requests", "1,2", "--rows", "1,4", "--contexts", "16", "--repeats", 1)
    assert cli("profile", *small, *grid, "--out", tmp_path / "table.json").status == 0
    table = json.loads((tmp_path / "table.json").read_text())
    slow = {
        name: [[[2 * t for t in row] for row in rows] for rows in table[name]] for name in ("causal_ms", "drafting_ms")
    }
    (tmp_path / "slow.json").write_text(json.dumps(table | slow))
    rates = []
    for name in ("table", "table", "slow"):
        path = tmp_path / "result.json"
        run = cli(*words, "--simulate", tmp_path / f"{name}.json", "--json", path)
        assert run.status == 0 and "step times simulated" in " ".join(run.out.split())
        result = json.loads(path.read_text())
        assert result["simulated"]["device"] == table["about"]["provenance"]["device"]
        assert not any(measured["fallbacks"] for measured in result["runs"])
        rates.append([measured["aggregate_tok_s"] for measured in result["runs"]])
    assert rates[0] == rates[1] == pytest.approx([2 * rate for rate in rates[2]])
    assert "no cost table" in cli(*words, "--simulate", tmp_path / "missing.json").error


@pytest.mark.slow
def test_bench_of_the_real_model(cli, tmp_path):
    path = tmp_path / "result.json"
    words = ["--policies", "ar,ar-row:6", "--concurrency", "1,2", "--limit", 4, "--max-new-tokens", 16, "--repeats", 1]
    assert cli("bench", *words, "--json", path).status == 0
    assert {row["policy"] for row in json.loads(path.read_text())["summary"]} == {"ar", "ar-row:6"}


def test_a_policy_that_has_to_do_without_its_cost_table_says_so_and_in_the_result(cli, words, tmp_path, monkeypatch):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").write_text("a file where the folder should be")  # no table can be kept
    words[words.index("--policies") + 1] = "ar,paper-adaptive,ema-tiers,budget,tiers"
    path = tmp_path / "result.json"
    run = cli(*words, "--repeats", 1, "--json", path)
    assert (run.status, " ".join(run.out.split()).count("policy paper-adaptive: steps are taken to cost")) == (0, 1)
    noted = {entry["policy"]: entry["fallbacks"] for entry in json.loads(path.read_text())["runs"]}
    assert [bool(noted[policy]) for policy in ("ar", "paper-adaptive", "budget")] == [False, True, False]
