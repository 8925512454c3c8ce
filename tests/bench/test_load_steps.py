"""Load jumps: what is compared with what, and that a run writes what it says."""

import json

import pytest
from typer.testing import CliRunner

from recguide.bench import changing_load, load_steps
from recguide.bench.load_steps import Jumps, Step, stretches, summarise
from tests.helpers import small_model

JUMPS = Jumps(loads=(1, 3), rounds=2, grace=2, window=3, rest=5)
PROMPTS = [[1, 2, 3 + i] for i in range(5)]


def steady(rate, count, drafting=True):
    return [Step(1.0, 1.0, rate, drafting)] * count


def test_a_slow_start_behind_the_grace_shows_and_one_within_it_does_not():
    jumps = Jumps(loads=(1,), grace=2, window=3, rest=5)
    (row,) = summarise([(1, steady(1, 2) + steady(10, 8))], jumps)
    assert row["ratio"] == 1.0
    (row,) = summarise([(1, steady(1, 5) + steady(10, 5))], jumps)
    assert row["ratio"] == pytest.approx(0.1)


def test_longer_contexts_behind_a_change_are_not_held_against_the_policy():
    """Half as fast there, where plain steps take twice as long."""
    slow = [Step(2.0, 2.0, 5, True)] * 5
    (row,) = summarise([(1, slow + steady(5, 5))], Jumps(loads=(1,), grace=2, window=3, rest=5))
    assert row["early_tok_s"] == row["steady_tok_s"] / 2 and row["ratio"] == 1.0


def test_changes_of_mode_are_counted_behind_the_grace():
    modes = [False, True, True, False, True, True, True, True, True, True]
    (row,) = summarise([(1, [Step(1.0, 1.0, 1, mode) for mode in modes])], Jumps(loads=(1,), grace=2, window=3, rest=5))
    assert row["switches_per_100_steps"] == pytest.approx(100 * 2 / 8)


def test_every_stretch_runs_at_its_load():
    seen = list(stretches(small_model(shift=1), "recguide", PROMPTS, JUMPS))
    assert [load for load, _ in seen] == [1, 3, 1, 3]
    assert all(len(steps) == 10 for _, steps in seen)
    assert all(step.seconds > 0 and step.tokens >= load for load, steps in seen for step in steps)


def test_the_script_writes_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(changing_load, "open_model", lambda *_: small_model(shift=1))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\x01\x02\x03\n\x02\x03\x04\n")
    out = tmp_path / "steps.json"
    words = ["--rounds", "1", "--loads", "1,2", "--prompts", str(prompts), "--json", str(out)]
    shown = CliRunner().invoke(load_steps.app, words)
    assert shown.exit_code == 0, shown.output
    assert [row["load"] for row in json.loads(out.read_text())["summary"]] == [1, 2]


def test_what_was_seen_before_an_interrupt_is_kept(tmp_path, monkeypatch):
    def interrupted(*_):
        yield 1, [Step(1.0, 1.0, 1, True)] * 100
        raise KeyboardInterrupt

    monkeypatch.setattr(changing_load, "open_model", lambda *_: small_model(shift=1))
    monkeypatch.setattr(load_steps, "stretches", interrupted)
    prompts, out = tmp_path / "prompts.txt", tmp_path / "steps.json"
    prompts.write_text("\x01\x02\x03\n")
    CliRunner().invoke(load_steps.app, ["--prompts", str(prompts), "--json", str(out)])
    assert [row["load"] for row in json.loads(out.read_text())["summary"]] == [1]


def test_an_unknown_policy_is_told_before_any_work(monkeypatch):
    monkeypatch.setattr(changing_load, "open_model", lambda *_: pytest.fail("a model was loaded"))
    shown = CliRunner().invoke(load_steps.app, ["--policy", "luck"])
    assert "luck" in str(shown.exception)
