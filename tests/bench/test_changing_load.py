"""A walk through loads: every stretch runs at its load for its time or tokens, and gains are paired by repeat."""

import json

import pytest
from typer.testing import CliRunner

from recguide.bench import changing_load, planning
from recguide.bench.changing_load import ClosedLoop, Walk, Walking, summarise
from recguide.bench.turns import take_turns
from recguide.errors import RecGuideError
from tests.helpers import small_model

PROMPTS = [[1, 2, 3 + i] for i in range(5)]
MODEL = small_model(shift=1)


def measure(spec, walk, *, equal_time):
    walking = Walking(MODEL, spec, PROMPTS, walk, equal_time=equal_time)
    for _ in take_turns([walking]):
        pass
    return walking.result(len(walk.loads))


def test_equal_tokens_are_equal_for_every_policy():
    walk = Walk(loads=(1, 4, 2), tokens=10, max_new_tokens=12)
    for spec in ("ar", "recguide"):
        run = measure(spec, walk, equal_time=False)
        assert [s["load"] for s in run["stretches"]] == [1, 4, 2]
        assert all(s["tokens"] >= 10 * s["load"] for s in run["stretches"])
        assert run["tokens"] == sum(s["tokens"] for s in run["stretches"]) and run["seconds"] > 0


def test_equal_time_is_equal_time():
    run = measure("ar", Walk(loads=(1, 3), seconds=0.05, max_new_tokens=8), equal_time=True)
    assert all(0.05 <= s["seconds"] < 1 for s in run["stretches"])


def test_the_load_is_kept_up():
    loop = ClosedLoop(MODEL, "ar", PROMPTS, Walk(loads=(4,), max_new_tokens=6))
    seen = []

    def ended(spent, tokens):
        seen.append(loop.engine.last_step.requests)
        return tokens >= 60

    loop.stretch(4, ended)
    assert set(seen[1:]) == {4}


def run(policy, kind, repeat, tokens, seconds=1.0):
    return {"policy": policy, "kind": kind, "repeat": repeat, "tokens": tokens, "seconds": seconds}


def test_gains_are_paired_by_repeat():
    kinds = ("equal time", "equal tokens")
    runs = [run(p, k, r, t * (1 + r)) for p, t in (("ar", 100), ("recguide", 120)) for k in kinds for r in (0, 1)]
    ar, learned = summarise(runs)
    assert ar["equal time"] == {"tok_s": 150.0, "learned_gain": pytest.approx(1.2)}
    assert learned["equal tokens"]["learned_gain"] == 1.0


@pytest.mark.parametrize("wrong", [{"loads": ()}, {"loads": (0,)}, {"seconds": 0}, {"tokens": -1}, {"repeats": 0}])
def test_walks_that_cannot_be(wrong):
    with pytest.raises(RecGuideError, match=next(iter(wrong))):
        Walk(**wrong)


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(changing_load, "open_model", lambda *_: MODEL)


def test_an_interruption_keeps_the_stretches_that_all_have_made(opened, monkeypatch, tmp_path):
    plain, path = Walking._steps, tmp_path / "r.json"

    def cut(walking, *args):
        for number, _ in enumerate(plain(walking, *args)):
            if walking.spec == "ar" and len(walking.stretches) == 2:
                raise KeyboardInterrupt
            yield number

    monkeypatch.setattr(Walking, "_steps", cut)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "\x01\x02"}) + "\n")
    quick = ["--policies", "linear:2,ar", "--loads", "1,2,1", "--seconds", "0.3", "--repeats", "1"]
    CliRunner().invoke(changing_load.app, ["--prompts", str(prompts), "--json", str(path), *quick])
    runs = json.loads(path.read_text())["runs"]
    assert [r["policy"] for r in runs] == ["linear:2", "ar"]
    assert all([s["load"] for s in r["stretches"]] == [1, 2] for r in runs)
    assert all(r["tokens"] == sum(s["tokens"] for s in r["stretches"]) > 0 for r in runs)


def test_both_scripts_store_what_they_show(opened, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"\x01\x02{chr(3 + i)}"}) + "\n" for i in range(5)))
    common = ["--prompts", str(prompts), "--json", str(tmp_path / "r.json")]
    quick = ["--policies", "recguide,ar", "--loads", "1,2", "--seconds", "0.05", "--tokens", "6", "--repeats", "1"]
    done = CliRunner().invoke(changing_load.app, [*common, *quick])
    assert done.exit_code == 0, done.output
    stored = json.loads((tmp_path / "r.json").read_text())
    assert len(stored["runs"]) == 4 and stored["settings"]["policies"] == ["recguide", "ar"]
    done = CliRunner().invoke(planning.app, [*common, "--loads", "1,3", "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [r["load"] for r in rows] == [1, 3] and all(0 < r["share"] < 1 for r in rows)
