"""README tables come from stored results, and a figure that was changed by hand is found."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recguide.bench.llamacpp import OTHER
from recguide.bench.readme import (
    RESULTS,
    changing_load_table,
    fill,
    forward_table,
    kernels_table,
    load_steps_table,
    markdown,
    planning_table,
    policies_table,
    soak_table,
    versus_table,
)

ROOT = Path(__file__).resolve().parents[2]
README = """# Title

<!-- policies -->
old
<!-- /policies -->

between

<!-- simulated -->
<!-- /simulated -->

<!-- simulated_b200 -->
<!-- /simulated_b200 -->

<!-- changing_load -->
<!-- /changing_load -->

<!-- ablation -->
<!-- /ablation -->

<!-- planning -->
<!-- /planning -->

<!-- versus -->
<!-- /versus -->

<!-- forward -->
<!-- /forward -->

<!-- load_steps -->
<!-- /load_steps -->

<!-- soak -->
<!-- /soak -->

<!-- kernels -->
<!-- /kernels -->

after
"""


def summary_row(policy, concurrency, rate, ratio, **other):
    base = {"policy": policy, "concurrency": concurrency, "aggregate_tok_s": rate, "ratio_to_ar": ratio}
    return base | {"tpf": 1.0, "mean_acceptance_length": None} | other


RESULT = {
    "provenance": {
        "command": "recguide bench --json out.json",
        "created": "2026-01-02T03:04:05+00:00",
        "device": "a processor, 2 cores",
        "threads": 2,
        "torch": "2.13.0",
    },
    "model": {"name": "smollm2-135m", "dtype": "bfloat16"},
    "prompts": {"count": 40, "fingerprint": "0123456789abcdef"},
    "settings": {"policies": ["ar", "linear:8"], "repeats": 3, "max_new_tokens": 64},
    "summary": [
        summary_row("ar", 1, 50.0, 1.0),
        summary_row("linear:8", 1, 80.4, 1.608, tpf=1.5, mean_acceptance_length=3.0),
        summary_row("ar", 16, 300.0, 1.0),
        summary_row("linear:8", 16, 240.0, 0.8, tpf=1.4, mean_acceptance_length=2.9),
    ],
    "versus": [
        {
            "concurrency": 1,
            OTHER: 60.2,
            "best": "linear:8",
            "policies": {
                "ar": {"aggregate_tok_s": 50.0, "ratio": 0.83},
                "linear:8": {"aggregate_tok_s": 80.4, "ratio": 1.336},
            },
        },
        {
            "concurrency": 16,
            OTHER: 400.0,
            "best": "ar",
            "policies": {
                "ar": {"aggregate_tok_s": 300.0, "ratio": 0.75},
                "linear:8": {"aggregate_tok_s": 240.0, "ratio": 0.6},
            },
        },
    ],
}


FORWARD = {
    "provenance": RESULT["provenance"] | {"command": "python -m recguide.bench.forward --json out.json"},
    "model": RESULT["model"],
    "settings": {"context": 128, "repeats": 15},
    "cases": [
        {
            "requests": 1,
            "rows": 1,
            "ours_ms": 20.04,
            "transformers_ms": 40.0,
            "ratio": 0.501,
            "ratio_to_one_row": 1.0,
        },
        {
            "requests": 8,
            "rows": 8,
            "ours_ms": 61.0,
            "transformers_ms": 90.0,
            "ratio": 0.68,
            "ratio_to_one_row": 3.05,
        },
    ],
}


CHANGING = RESULT | {
    "settings": {"loads": [1, 32, 1], "seconds": 5.0, "tokens": 48, "max_new_tokens": 64, "repeats": 2},
    "summary": [
        {
            "policy": "ar",
            "equal time": {"tok_s": 50.4, "learned_gain": 1.1},
            "equal tokens": {"tok_s": 60.0, "learned_gain": 1.2},
        },
        {
            "policy": "linear:8",
            "equal time": {"tok_s": 40.0, "learned_gain": 1.5},
            "equal tokens": {"tok_s": None, "learned_gain": None},
        },
    ],
}


PLANNING_ROW = {
    "load": 1,
    "step_ms": 14.04,
    "plan_ms": 0.281,
    "share": 0.02,
    "mean_share": 0.034,
    "auc": 0.8123,
    "ece": 0.05,
    "ece_by_chance": 0.042,
    "positions": 310,
}
PLANNING = RESULT | {
    "settings": {"policy": "recguide", "seconds": 20.0},
    "rows": [PLANNING_ROW, PLANNING_ROW | {"load": 32, "auc": None, "ece": None, "ece_by_chance": None}],
}


LOAD_STEPS = RESULT | {
    "settings": {"policy": "recguide", "loads": [1, 16], "rounds": 6, "grace": 20, "window": 30},
    "summary": [
        {"load": 16, "early_tok_s": 95.4, "steady_tok_s": 100.0, "ratio": 0.954, "switches_per_100_steps": 0.25},
    ],
}
SOAK = RESULT | {
    "minutes": 10.0,
    "warm_up_minutes": 7.0,
    "slopes_mb_per_minute": {"kernel_mb": 0.154, "page_mb": -2.5},
    "messages_per_s": 14.7,
    "throughput": {"turns": [{}, {}], "ratio_to_alone": {"drawing": 0.8774, "quiet": 1.0}},
}
KERNELS = RESULT | {
    "settings": {"concurrency": 32, "context": 512, "repeats": 7},
    "cases": [
        {
            "plan": "linear:8, verifying",
            "rows_per_request": 8,
            "forward_ms": 111.3,
            "step_ms": 114.3,
            "attention_of_forward": 0.2412,
            "signals_of_step": 0.0,
        }
    ],
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / RESULTS / "changing_load.json").write_text(json.dumps(CHANGING))
    for name in ("policies", "simulated", "simulated_b200", "ablation", "versus"):
        (tmp_path / RESULTS / f"{name}.json").write_text(json.dumps(RESULT))
    (tmp_path / RESULTS / "forward.json").write_text(json.dumps(FORWARD))
    (tmp_path / RESULTS / "planning.json").write_text(json.dumps(PLANNING))
    (tmp_path / RESULTS / "load_steps.json").write_text(json.dumps(LOAD_STEPS))
    (tmp_path / RESULTS / "soak.json").write_text(json.dumps(SOAK))
    (tmp_path / RESULTS / "kernels.json").write_text(json.dumps(KERNELS))
    return tmp_path


def script(project, *words):
    command = [sys.executable, "-m", "recguide.bench.readme", *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def test_markdown_is_a_table():
    assert markdown(["a", "b"], [["1", "2"], ["3", "4"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"


def test_policies_table():
    lines = policies_table(RESULT).splitlines()
    assert lines[0] == "| policy | C=1 | C=16 | tokens per forward | acceptance length |"
    assert lines[2] == "| `ar` | 50 (1.00x) | **300 (1.00x)** | 1.00 | - |"
    assert lines[3] == "| `linear:8` | **80 (1.61x)** | 240 (0.80x) | 1.50 | 3.00 |"


def test_versus_table_shows_where_we_lose():
    lines = versus_table(RESULT).splitlines()
    assert lines[0] == "| concurrency | llama.cpp server, 4-bit | `ar`, bfloat16 | `linear:8`, bfloat16 |"
    assert lines[2] == "| 1 | 60 | 50 (0.83x) | **80 (1.34x)** |"
    assert lines[3] == "| 16 | 400 | 300 (0.75x) | 240 (0.60x) |"


def test_load_steps_table_compares_soon_with_settled():
    lines = load_steps_table(LOAD_STEPS).splitlines()
    assert lines[2] == "| 16 | 95 | 100 | 0.95 | 0.2 |"
    assert "1 -> 16 -> 1, 6 rounds; soon: steps 20 to 50" in lines[4]


def test_soak_table_shows_growth_and_what_drawing_costs():
    lines = soak_table(SOAK).splitlines()
    assert lines[2] == "| +0.15 MB a minute | -2.50 MB a minute | 15 | 0.877 | 1.000 |"
    assert "over 10 minutes of changing load, after 7 to warm up; medians of 2 turns" in lines[4]


def test_kernels_table_shows_shares():
    lines = kernels_table(KERNELS).splitlines()
    assert lines[2] == "| `linear:8, verifying` | 8 | 111 | 114 | 24.1% | 0.0% |"
    assert "32 requests with 512 tokens" in lines[4]


def test_changing_load_table_shows_gains_by_policy():
    lines = changing_load_table(CHANGING).splitlines()
    assert lines[2] == "| `ar` | 50 | 1.10x | 60 | 1.20x |"
    assert lines[3] == "| `linear:8` | 40 | 1.50x | - | - |"  # stopped before
    for word in ("1 -> 32 -> 1", "5 s a stretch", "48 tokens", "medians of 2", "40 prompts", "a processor, 2 cores"):
        assert word in lines[-1]


def test_a_simulated_device_is_named_instead_of_the_one_that_computed():
    table = {"device": "another processor", "created": "2025-05-06T00:00:00+00:00"}
    about = policies_table(RESULT | {"simulated": table}).splitlines()[-1]
    assert "simulated, as measured on another processor (2025-05-06)" in about
    assert "a processor, 2 cores" not in about


def test_planning_table_shows_what_chance_alone_would_make():
    lines = planning_table(PLANNING).splitlines()
    assert lines[2] == "| 1 | 14.0 | 0.28 | 2.0% | 3.4% | 310 | 0.812 | 0.050 | 0.042 |"
    assert lines[3].endswith("| - | - | - |")
    for word in ("20 s a load", "`recguide`", "a processor, 2 cores", "recguide bench --json out.json"):
        assert word in lines[-1]


def test_forward_table():
    lines = forward_table(FORWARD).splitlines()
    assert lines[0] == "| requests x rows | transformers, ms | here, ms | to one row |"
    assert lines[2] == "| 1 x 1 | 40.0 | 20.0 (0.50x) | 1.00x |"
    assert lines[3] == "| 8 x 8 | 90.0 | 61.0 (0.68x) | 3.05x |"
    for word in ("15 paired samples", "128 tokens", "bfloat16", "a processor, 2 cores", "recguide.bench.forward"):
        assert word in lines[-1]


@pytest.mark.parametrize("make", [policies_table, versus_table])
def test_a_table_says_what_was_measured(make):
    about = make(RESULT).splitlines()[-1]
    for word in ("40 prompts", "0123456789abcdef", "64 tokens", "bfloat16", "a processor, 2 cores", "2026-01-02"):
        assert word in about
    assert "`recguide bench --json out.json`" in about


def test_fill_puts_the_tables_between_their_marks(project):
    filled = fill(README, project / RESULTS)
    assert f"<!-- policies -->\n{policies_table(RESULT)}\n<!-- /policies -->" in filled
    assert "old" not in filled
    for kept in ("# Title\n", "\n\nbetween\n\n", "\n\nafter\n"):
        assert kept in filled


def test_fill_reaches_a_table_that_is_still_empty(project):
    assert f"<!-- versus -->\n{versus_table(RESULT)}\n<!-- /versus -->" in fill(README, project / RESULTS)


def test_fill_again_changes_nothing(project):
    once = fill(README, project / RESULTS)
    assert fill(once, project / RESULTS) == once


def test_a_backslash_in_a_command_stays(project):
    odd = copy.deepcopy(RESULT)
    odd["provenance"]["command"] = r"recguide bench --prompts a\1.txt"
    (project / RESULTS / "policies.json").write_text(json.dumps(odd))
    assert r"a\1.txt" in fill(README, project / RESULTS)


def test_a_readme_without_the_marks_is_refused(project):
    with pytest.raises(ValueError, match="policies"):
        fill("# Title\n", project / RESULTS)


def test_check_fails_on_a_changed_figure_and_writing_mends_it(project):
    assert script(project).returncode == 0
    right = (project / "README.md").read_text()
    assert script(project, "--check").returncode == 0
    (project / "README.md").write_text(right.replace("80 (1.61x)", "99 (1.98x)"))
    failed = script(project, "--check")
    assert failed.returncode == 1
    assert "tables differ from data/results" in failed.stdout + failed.stderr
    assert "99 (1.98x)" in (project / "README.md").read_text()
    assert script(project).returncode == 0
    assert (project / "README.md").read_text() == right


def test_missing_results_are_told_without_a_traceback(project):
    (project / RESULTS / "versus.json").unlink()
    failed = script(project, "--check")
    assert failed.returncode != 0
    assert "versus.json" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_tables_of_this_readme_are_what_the_results_say():
    if not (ROOT / RESULTS).exists():
        pytest.skip("no stored results yet")
    text = (ROOT / "README.md").read_text()
    assert fill(text, ROOT / RESULTS) == text
