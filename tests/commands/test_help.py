"""Help teaches: every command names its options and shows how it is called."""

import re

import pytest

from recguide import __version__

OPTIONS = {
    "demo": [],
    "generate": [
        "--prompts --policy --concurrency --max-new-tokens --temperature --top-k --top-p --min-p",
        "--repetition-penalty --seed --stop --out --model --adapter --dtype --device --max-context",
    ],
    "bench": [
        "--policies --concurrency --prompts --limit --max-new-tokens --repeats --temperature --json",
        "--model --adapter --dtype --device --max-context",
    ],
    "audit": ["--policies --concurrency --prompts --limit --max-new-tokens --temperature --model --adapter --dtype"],
    "train-drafter": ["--dialogues --steps --minutes --rows --rank --learning-rate --soft --seed --model"],
    "lab": ["--app --folder --port --no-browser"],
    "doctor": [],
    "models list": [],
    "models fetch": ["--gguf --force"],
}


def shown(run):
    return " ".join(re.sub("[│╭╮╰╯─]", " ", run.out).split())


def test_root_help_lists_every_command(cli):
    run = cli("--help")
    assert run.status == 0
    for command in {name.split()[0] for name in OPTIONS}:
        assert re.search(rf"\b{command}\b", run.out)
    assert "Start with recguide demo" in run.out
    assert "[bold]" not in run.out


@pytest.mark.parametrize("command", OPTIONS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_option(cli, command, flag):
    run = cli(*command.split(), flag)
    assert (run.status, run.err) == (0, "")
    assert re.search(rf"Usage: .*recguide {command}\b", run.out)
    for option in " ".join(OPTIONS[command]).split():
        assert option in run.out


@pytest.mark.parametrize("command", [name for name, options in OPTIONS.items() if options])
def test_help_shows_an_example(cli, command):
    assert f"Example: recguide {command} " in shown(cli(*command.split(), "--help"))


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_explained(cli, command):
    """A line that starts an option goes on with words, not only with its type and default."""
    lines = [line for line in cli(*command.split(), "--help").out.splitlines() if re.match(r"│ [* ]*--[a-z]", line)]
    assert len(lines) >= 1 + len(" ".join(OPTIONS[command]).split())
    for line in lines:
        assert re.sub(r"--?[\w-]+|\[.*?\]|<.*?>|\b[A-Z]+\b|[│,]", " ", line).split(), line


def test_no_words_at_all_show_the_help(cli):
    run = cli()
    assert "Start with recguide demo" in run.out + run.err
    run = cli("models")
    assert "Show, fetch and check models." in run.out + run.err


def test_version(cli):
    run = cli("--version")
    assert (run.status, run.out.strip()) == (0, __version__)
