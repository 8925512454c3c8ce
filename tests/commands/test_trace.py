"""``recguide trace``: record, check after an end and after a kill, import."""

import json

from recguide.trace.reader import read_trace
from tests.trace_round import ROUND


def test_record_and_check(cli, small, prompts, tmp_path):
    words = ("--prompts", prompts, "--max-new-tokens", 24, "--concurrency", 2)
    made = cli("trace", "record", tmp_path / "run", *small, *words)
    assert made.status == 0
    checked = cli("trace", "check", tmp_path / "run")
    assert checked.status == 0
    found = read_trace(tmp_path / "run")
    for name, rows in found.tables.items():
        assert f"{name}" in checked.out and f"{len(rows)} rows" in checked.out
    assert "of model" not in checked.err
    assert len(found.tables["requests"]) == 3
    assert "reached draft positions" in checked.out


def test_ctrl_c_keeps_what_is_there(cli, small, prompts, tmp_path, steps):
    steps.limit = 6
    run = cli("trace", "record", tmp_path / "run", *small, "--prompts", prompts)
    assert run.status == 130
    found = read_trace(tmp_path / "run")
    assert found.cut == ()
    assert 0 < len(found.tables["steps"]) <= 6
    assert set(found.tables["requests"]["finish_reason"].to_pylist()) == {"abort"}


def test_a_log_without_an_end_is_told_and_fails(cli, small, prompts, tmp_path):
    assert cli("trace", "record", tmp_path / "run", *small, "--prompts", prompts, "--max-new-tokens", 8).status == 0
    (tmp_path / "run" / "plans.parquet").unlink()
    run = cli("trace", "check", tmp_path / "run")
    assert run.status == 1
    assert "cut short" in run.out


def test_import(cli, tmp_path):
    source = tmp_path / "t.jsonl"
    source.write_text(json.dumps(ROUND) + "\n")
    run = cli("trace", "import", source, tmp_path / "run")
    assert run.status == 0
    assert "imported: 1 rounds" in run.out


def test_bad_folders_and_policies_are_told(cli, small, prompts, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    assert "is not empty" in cli("trace", "record", tmp_path / "full", *small, "--prompts", prompts).error
    assert "policy 'warp' is unknown" in cli("trace", "record", tmp_path / "run", "--policy", "warp").error
    assert "holds no decision log" in cli("trace", "check", tmp_path).error
