"""The measured figures: all of them there, consistent with each other, interleaved and paired; partial runs count."""

import json
import statistics

import pytest

from recguide.bench import measure, turns
from recguide.bench.measure import SCHEMA, Bench, BenchSettings, per_request_rates, summarise
from recguide.bench.prompts import Prompt, fingerprint
from recguide.engine.clock import Stopwatch
from recguide.engine.engine import Engine
from recguide.engine.stats import PHASES
from recguide.errors import RecGuideError
from recguide.models.loader import Model
from recguide.policies import parse_policy
from tests.helpers import SMALL, small_model, small_weights

POLICIES = ("ar", "linear:4", "overlap:4:1")
PROMPTS = [Prompt(str(i), text="".join(chr((3 * i + j) % 13) for j in range(3 + i))) for i in range(5)]
SETTINGS = {"policies": POLICIES, "concurrency": (1, 3), "max_new_tokens": 24, "repeats": 2, "max_context": 64}
FIGURES = {
    "policy": str,
    "concurrency": int,
    "repeat": int,
    "aggregate_tok_s": float,
    "per_request_tok_s": float,
    "ttft_s": float,
    "tpf": float,
    "rows_per_token": float,
    "conditional_acceptance": list,
    "reached": list,
    "acceptance_histogram": dict,
    "num_spec_steps": int,
    "num_draft_tokens": int,
    "num_accepted_draft_tokens": int,
    "phases_s": dict,
    "share_outside_forward": float,
    "wall_s": float,
    "tokens": int,
    "prompt_tokens": int,
    "steps": int,
}


def bench(model: Model | None = None, prompts=PROMPTS, **changes) -> Bench:
    return Bench(model or small_model(), prompts, BenchSettings(**(SETTINGS | changes)))


@pytest.fixture(scope="module")
def measured() -> Bench:
    made = bench()
    made.run()
    return made


def test_every_run_holds_every_figure(measured):
    assert len(measured.runs) == measured.settings.runs == 12
    for run in measured.runs:
        for name, kind in FIGURES.items():
            assert isinstance(run[name], kind), name
        assert set(run["phases_s"]) == set(PHASES)
        assert set(run) >= {"mean_acceptance_length", "draft_acceptance_rate", "num_steps_without_draft"}
        assert min(run["aggregate_tok_s"], run["per_request_tok_s"], run["ttft_s"], run["tpf"]) > 0


def test_the_result_names_what_was_measured(measured):
    result = json.loads(json.dumps(measured.result()))
    assert result["schema"] == SCHEMA
    assert result["model"]["fingerprint"] == measured.model.fingerprint
    assert result["model"]["dtype"] == "float32"
    assert result["prompts"] == {"count": 5, "fingerprint": fingerprint(PROMPTS)}
    assert result["settings"]["policies"] == list(POLICIES)
    assert result["settings"]["repeats"] == 2
    assert result["provenance"]["torch"]
    assert len(result["summary"]) == 6


def test_neighbouring_runs_differ_in_policy_only_and_repeats_alternate():
    made = bench(policies=("ar", "linear:4"), repeats=3, max_new_tokens=2)
    made.run()
    order = [(run["repeat"], run["concurrency"], run["policy"]) for run in made.runs]
    there, back = ("ar", "linear:4"), ("linear:4", "ar")
    expected = [(r, c, p) for r in range(3) for c in (1, 3) for p in (there, back)[r % 2]]
    assert order == expected


def test_policies_take_turns_and_only_their_own_time_counts(monkeypatch):
    """With turns of no length, every engine makes a step when all others have made theirs; each step takes a second of
    whichever clock is running."""
    monkeypatch.setattr(turns, "TURN", 0.0)
    monkeypatch.setattr(measure, "clock_of", lambda model: Stopwatch())
    passed, made = [0.0], []
    monkeypatch.setattr("recguide.engine.clock.time.perf_counter", lambda: passed[0])
    plain = Engine.step

    def step(engine):
        made.append(engine.policy.spec)
        passed[0] += 1.0
        return plain(engine)

    one = bench(policies=("ar", "linear:4"), concurrency=(3,), repeats=1, max_new_tokens=6)
    one.warm_up()
    monkeypatch.setattr(Engine, "step", step)
    runs = one._measure_in_turns(("ar", "linear:4"), 3, 0, lambda _: None)
    shorter = min(made.count(spec) for spec in ("ar", "linear:4"))
    assert made[: 2 * shorter] == ["ar", "linear:4"] * shorter
    assert [run["wall_s"] for run in runs] == [made.count(spec) for spec in ("ar", "linear:4")]


def test_answers_are_counted_as_they_are_finished():
    answers = []
    one = bench(max_new_tokens=4)
    one.run(on_answers=answers.append)
    assert sum(answers) == one.settings.runs * len(PROMPTS)


def test_warm_up_is_not_counted_and_meets_every_policy(monkeypatch):
    seen, plain = [], Engine.set_policy
    monkeypatch.setattr(Engine, "set_policy", lambda engine, spec: (seen.append(spec), plain(engine, spec))[1])
    made = bench()
    made.warm_up()
    assert tuple(seen) == POLICIES
    assert made.runs == []


def test_concurrency_is_what_was_asked_for(monkeypatch):
    together, plain = [], Engine.step

    def step(engine):
        deltas = plain(engine)
        together.append(engine.last_step.requests)
        return deltas

    made = bench()
    monkeypatch.setattr(Engine, "step", step)
    for level in (1, 3):
        together.clear()
        made.measure("ar", level, 0)
        assert max(together) == level


def test_every_policy_decodes_the_same_tokens(measured):
    assert len({(run["tokens"], run["prompt_tokens"]) for run in measured.runs}) == 1
    assert measured.runs[0]["prompt_tokens"] == sum(len(prompt.text) for prompt in PROMPTS)
    assert all(sum(run["finished"].values()) == len(PROMPTS) for run in measured.runs)


def test_throughput_identities(measured):
    for run in measured.runs:
        assert run["aggregate_tok_s"] == pytest.approx(run["tokens"] / run["wall_s"])
        assert run["step_seconds"] <= run["wall_s"]
        assert sum(run["phases_s"].values()) == pytest.approx(run["step_seconds"])
        assert run["share_outside_forward"] == pytest.approx(1 - run["phases_s"]["forward"] / run["step_seconds"])


def test_acceptance_identities(measured):
    for run in measured.runs:
        histogram = run["acceptance_histogram"]
        assert sum(histogram.values()) == run["num_spec_steps"]
        assert sum(k * n for k, n in histogram.items()) == run["num_accepted_draft_tokens"]
        kept = [c * r for c, r in zip(run["conditional_acceptance"], run["reached"], strict=True)]
        assert sum(kept) == pytest.approx(run["num_accepted_draft_tokens"])
        assert run["reached"] == sorted(run["reached"], reverse=True)
        assert all(later <= round(k) for k, later in zip(kept, run["reached"][1:], strict=False))
        assert all(0 <= c <= 1 for c in run["conditional_acceptance"])


def test_ratios_of_drafts_follow_from_counts(measured):
    for run in measured.runs:
        if run["policy"] == "ar":
            assert run["mean_acceptance_length"] is run["draft_acceptance_rate"] is None
            assert (run["num_draft_tokens"], run["tpf"], run["rows_per_token"]) == (0, 1, 1)
            continue
        accepted = run["num_accepted_draft_tokens"]
        assert 0 < accepted < run["num_draft_tokens"]
        assert run["mean_acceptance_length"] == pytest.approx(1 + accepted / run["num_spec_steps"])
        assert run["draft_acceptance_rate"] == pytest.approx(accepted / run["num_draft_tokens"])
        assert run["rows_per_token"] > 1


def test_categories_add_up():
    named = [Prompt(str(i), "ab"[i % 2], text=p.text) for i, p in enumerate(PROMPTS[:4])] + [PROMPTS[4]]
    run = bench(prompts=named).measure("linear:4", 3, 0)
    assert list(run["by_category"]) == ["a", "b", "none"]
    assert sum(part["tokens"] for part in run["by_category"].values()) == run["tokens"]
    assert all(part["mean_acceptance_length"] >= 1 and part["tpf"] > 0 for part in run["by_category"].values())


def test_branches_are_counted(measured):
    for run in measured.runs:
        assert set(run["branches_reused"]) <= set(run["branches_drafted"])
        assert bool(run["branches_drafted"]) == (run["policy"] != "ar")
        assert all(run["branches_drafted"][kind] >= n for kind, n in run["branches_reused"].items())


def test_per_request_rate_is_one_over_tpot():
    class Timed:
        generated, first_token_at, finished_at = 5, 10.0, 12.0

    class Single:
        generated, first_token_at, finished_at = 1, 10.0, 10.0

    assert list(per_request_rates([Timed(), Single()])) == [2.0]


def run_of(policy, repeat, rate, concurrency=1, **other):
    figures = {"per_request_tok_s": rate, "tpf": 1.0, "rows_per_token": 1.0, "mean_acceptance_length": None}
    base = {"policy": policy, "repeat": repeat, "concurrency": concurrency, "aggregate_tok_s": rate}
    return base | figures | {"share_outside_forward": 0.1} | other


def test_ratios_are_paired_by_repeat():
    """The machine was twice as fast in the second repeat; a ratio of medians would say 1.83."""
    runs = [run_of("ar", 0, 10.0), run_of("x", 0, 15.0), run_of("x", 1, 40.0), run_of("ar", 1, 20.0)]
    ar, other = summarise(runs)
    assert (ar["policy"], ar["ratio_to_ar"], ar["ratio_min"], ar["ratio_max"]) == ("ar", 1, 1, 1)
    assert (other["ratio_to_ar"], other["ratio_min"], other["ratio_max"]) == (1.75, 1.5, 2.0)
    assert other["aggregate_tok_s"] == 27.5
    assert other["repeats"] == 2


def test_ratios_stay_within_a_concurrency():
    runs = [run_of("ar", 0, 10.0), run_of("ar", 0, 100.0, 8), run_of("x", 0, 20.0), run_of("x", 0, 50.0, 8)]
    ratios = {(row["policy"], row["concurrency"]): row["ratio_to_ar"] for row in summarise(runs)}
    assert ratios == {("ar", 1): 1, ("ar", 8): 1, ("x", 1): 2.0, ("x", 8): 0.5}


def test_without_a_partner_there_is_no_ratio():
    (row,) = summarise([run_of("x", 0, 20.0)])
    assert "ratio_to_ar" not in row
    rows = summarise([run_of("ar", 0, 10.0), run_of("x", 0, 20.0), run_of("x", 1, 90.0)])
    assert rows[1]["ratio_to_ar"] == 2.0


def test_medians_skip_what_a_policy_does_not_have():
    runs = [run_of("x", i, 1.0 + i, mean_acceptance_length=length) for i, length in enumerate((None, 2.0, 3.0))]
    (row,) = summarise(runs)
    assert row["mean_acceptance_length"] == 2.5
    assert row["aggregate_tok_s"] == statistics.median([1.0, 2.0, 3.0])
    (row,) = summarise([run_of("ar", 0, 1.0)])
    assert row["mean_acceptance_length"] is None


def test_a_partial_result_is_whole_at_every_moment():
    made, sizes = bench(max_new_tokens=4), []
    assert json.loads(json.dumps(made.result()))["runs"] == []

    def on_round():
        result = json.loads(json.dumps(made.result()))
        sizes.append(len(result["runs"]))
        assert result["runs"][-1]["policy"] == POLICIES[-1]
        assert {(r["policy"], r["concurrency"]) for r in result["summary"]} == {
            (r["policy"], r["concurrency"]) for r in result["runs"]
        }
        if len(sizes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(on_round)
    assert sizes == [3, 6]
    assert len(made.result()["runs"]) == 6


def test_temperature_is_seeded_by_prompt(measured):
    made = bench(temperature=0.8)
    runs = [made.measure(policy, level, 0) for policy, level in (("ar", 1), ("linear:4", 3))]
    assert runs[0]["tokens"] == runs[1]["tokens"]
    assert runs[0]["finished"] == runs[1]["finished"]


def test_one_token_answers_have_no_rate_of_their_own():
    run = bench(max_new_tokens=1).measure("linear:4", 1, 0)
    assert run["per_request_tok_s"] is None
    assert run["tokens"] == 5
    json.dumps(run)


def test_a_model_without_finite_logits_is_told_in_one_line():
    weights = small_weights()
    weights["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(RecGuideError, match="not finite"):
        bench(small_model(weights=weights)).run()


def test_a_prompt_beyond_the_context_is_refused_before_work():
    with pytest.raises(RecGuideError, match="a prompt has 60 tokens; with 24 new ones it exceeds the context of 64"):
        bench(prompts=[*PROMPTS, Prompt("long", text="\x01" * 60)])
    bench(prompts=[Prompt("fits", text="\x01" * 40)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ()}, "policies is empty"),
        ({"concurrency": ()}, "concurrency is empty"),
        ({"concurrency": (4, 0)}, "concurrency is 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"policies": ("ar", "warp")}, "policy 'warp' is unknown"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"policies": ("ar", "ar")}, "twice"),
        ({"concurrency": (1, 1)}, "twice"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(RecGuideError, match=message):
        BenchSettings(**(SETTINGS | change))


def test_defaults_are_valid():
    settings = BenchSettings()
    assert settings.runs == len(settings.policies) * len(settings.concurrency) * settings.repeats
    assert all(parse_policy(spec).spec for spec in settings.policies)
    assert SMALL.max_positions >= 64
