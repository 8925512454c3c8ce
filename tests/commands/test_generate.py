"""``recguide generate`` end to end: streamed text, saved answers, every policy the same, Ctrl-C keeps what is there."""

import json

import pytest

from recguide.bench.measure import encode
from recguide.bench.prompts import Prompt, load_prompts
from recguide.engine.engine import Engine
from recguide.engine.sampling import SamplingParams
from recguide.models.loader import load_model

QUESTION = "Why is the sky blue?"


def answer(folder, prompt=QUESTION, tokens=24, **params):
    """What the library says, without the command line."""
    model = load_model(str(folder), dtype="float32", adapter=None)
    chat = Prompt("0", messages=({"role": "user", "content": prompt},))
    params = SamplingParams(**({"max_new_tokens": tokens, "seed": 0} | params))
    request = Engine(model, max_concurrency=1).generate([encode(model, chat)], params)[0]
    return request.text(model.tokenizer)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("policy", ["ar", "linear:4", "ar-row:6", "overlap:8:1", "quadratic:4", "window"])
def test_the_streamed_text_is_the_answer(cli, small, folder, policy):
    run = cli("generate", QUESTION, *small, "--policy", policy, "--max-new-tokens", 24)
    assert run.status == 0
    assert run.out == answer(folder) + "\n"
    assert "24 tokens in" in run.err
    assert "tokens per forward (" + policy.split(":")[0] in run.err


def test_sampling_options_reach_the_engine(cli, small, folder):
    options = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 7}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    run = cli("generate", QUESTION, *small, "--max-new-tokens", 24, *words)
    assert run.out == answer(folder, **options) + "\n"
    assert run.out != answer(folder) + "\n"


def test_stop_strings_are_cut_from_the_stream(cli, small, folder):
    """The stop string spans several tokens; its beginning may not be shown either."""
    whole = answer(folder, temperature=1.0)
    stop = whole[len(whole) // 2 :][:5]
    run = cli("generate", QUESTION, *small, "--policy", "ar", "--max-new-tokens", 24, "--temperature", 1, "--seed", 0)
    assert run.out == whole + "\n"
    words = ["--temperature", 1, "--seed", 0, "--stop", stop]
    stopped = cli("generate", QUESTION, *small, "--policy", "ar", "--max-new-tokens", 24, *words)
    assert stopped.out == whole[: whole.index(stop)] + "\n"


def test_out_holds_answers_and_statistics(cli, small, prompts, tmp_path, folder):
    out = tmp_path / "answers.jsonl"
    run = cli("generate", "--prompts", prompts, *small, "--max-new-tokens", 24, "--out", out, "--policy", "linear:4")
    assert run.status == 0
    assert f"3 answers in {out}" in run.err
    saved = rows(out)
    assert [row["id"] for row in saved] == [prompt.id for prompt in load_prompts(prompts)]
    for row in saved:
        assert set(row) >= {"id", "text", "tokens", "finish_reason", "error", "seed"}
        assert row["finish_reason"] in ("length", "eos")
        assert 1 <= len(row["tokens"]) <= 24
        assert row["error"] is None
        assert row["mean_acceptance_length"] >= 1


def test_a_drawn_seed_is_saved_and_repeats_the_answer(cli, small, prompts, tmp_path):
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    words = ["generate", "--prompts", prompts, *small, "--max-new-tokens", 16, "--temperature", 1]
    cli(*words, "--out", first)
    cli(*words, "--out", again, "--seed", rows(first)[0]["seed"])
    assert [row["tokens"] for row in rows(again)] == [row["tokens"] for row in rows(first)]


def test_answers_of_a_file_are_printed_with_their_ids(cli, small, prompts, tmp_path):
    out = tmp_path / "answers.jsonl"
    words = ["generate", "--prompts", prompts, *small, "--max-new-tokens", 8]
    cli(*words, "--out", out)
    run = cli(*words)
    assert run.out == "".join(row["text"] + "\n" for row in rows(out))
    for row in rows(out):
        assert f"{row['id']} ({row['finish_reason']})" in run.err


def test_without_an_adapter_it_says_so(cli, folder):
    run = cli("generate", "hi", "--model", folder, "--dtype", "float32", "--max-new-tokens", 2)
    assert run.status == 0
    assert "note: no draft adapter" in run.err


def test_a_model_with_a_shorter_context_than_the_default(cli, own_folder):
    config = json.loads((own_folder / "config.json").read_text())
    (own_folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    words = ["--model", own_folder, "--dtype", "float32", "--max-new-tokens", 4]
    assert cli("generate", "hi", *words).status == 0


def test_ctrl_c_prints_what_is_there(cli, small, steps, folder):
    whole = answer(folder)
    steps.count, steps.limit = 0, 6
    run = cli("generate", QUESTION, *small, "--policy", "ar", "--max-new-tokens", 24)
    assert run.status == 130
    shown = run.out.rstrip("\n")
    assert len(shown) > 2
    assert whole.startswith(shown)
    assert "6 tokens in" in run.err
    assert "Traceback" not in run.err


def test_ctrl_c_ends_the_line_of_the_stream(cli, small, steps):
    steps.limit = 6
    run = cli("generate", QUESTION, *small, "--policy", "ar", "--max-new-tokens", 24)
    assert run.out.endswith("\n")


def test_ctrl_c_saves_partial_answers(cli, small, prompts, steps, tmp_path):
    whole, partial = tmp_path / "whole.jsonl", tmp_path / "partial.jsonl"
    words = ["generate", "--prompts", prompts, *small, "--max-new-tokens", 24, "--policy", "linear:4"]
    cli(*words, "--concurrency", 2, "--out", whole)
    steps.count, steps.limit = 0, steps.count // 2  # the same steps every time
    run = cli(*words, "--concurrency", 2, "--out", partial)
    assert run.status == 130
    assert "3 answers in" in run.err
    pairs = list(zip(rows(whole), rows(partial), strict=True))
    assert all(a["tokens"][: len(b["tokens"])] == b["tokens"] for a, b in pairs)
    assert "abort" in [row["finish_reason"] for row in rows(partial)]
    assert 0 < sum(len(row["tokens"]) for row in rows(partial)) < sum(len(row["tokens"]) for row in rows(whole))


def test_the_cached_default_needs_no_option(cli, cached, monkeypatch):
    """With ``--adapter none``: the shipped adapter belongs to the real model."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    run = cli("generate", "hi", "--adapter", "none", "--max-new-tokens", 4)
    assert run.status == 0
    assert "4 tokens in" in run.err


@pytest.mark.slow
def test_the_real_model_answers(cli):
    run = cli("generate", "What is the capital of France?", "--max-new-tokens", 24, "--dtype", "float32")
    assert run.status == 0
    assert "Paris" in run.out
