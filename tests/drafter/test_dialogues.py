"""Dialogue files: what a kill leaves behind is read, damage is refused, and writing goes on where it stopped."""

import json

import pytest

from recguide.bench.prompts import Prompt
from recguide.drafter.dialogues import (
    Dialogue,
    DialogueSettings,
    openers,
    read_dialogues,
    write_answers,
    write_dialogues,
)
from recguide.errors import RecGuideError
from recguide.models.loader import tiny_model

WHOLE = [Dialogue([1, 2], [3, 4, 5], "qa"), Dialogue([6], [7] * 9, "rag"), Dialogue([8], [9], "qa")]
LINES = [json.dumps(vars(d)) + "\n" for d in WHOLE]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "dialogues.jsonl"


@pytest.mark.parametrize("cut", range(len(LINES[2]) + 1))
def test_a_kill_at_any_byte_loses_only_the_last_line(path, cut):
    path.write_text(LINES[0] + LINES[1] + LINES[2][:cut])
    assert read_dialogues(path) == WHOLE[: 2 + (cut >= len(LINES[2]) - 1)]


@pytest.mark.parametrize("damage", ["{", "[1]", "3", '{"prompt": [1], "answer": [2]}', ""])
def test_damage_elsewhere_is_refused_with_its_line(path, damage):
    path.write_text(LINES[0] + damage + "\n" + LINES[1])
    with pytest.raises(RecGuideError, match=r"dialogues.jsonl:2: not a dialogue"):
        read_dialogues(path)


def test_no_file_is_no_dialogue(path):
    assert read_dialogues(path) == []


SETTINGS = DialogueSettings(user_tokens=6, long_user_tokens=9, answer_tokens=12, concurrency=4)


@pytest.fixture(scope="module")
def model():
    """Long enough for the writer's context of 1024 tokens."""
    config = tiny_model().config
    return tiny_model(config=config.__class__(**{**vars(config), "max_positions": 1024, "eos_ids": ()}))


def test_writing_goes_on_behind_a_cut_line(path, model):
    path.write_text(LINES[0] + LINES[1][:9])
    seen = []
    write_dialogues(model, path, 5, SETTINGS, lambda *progress: seen.append(progress))
    made = read_dialogues(path)
    assert made[0] == WHOLE[0]
    assert [count for count, _ in seen] == [2, 3, 4, 5] == list(range(2, len(made) + 1))
    assert seen[-1][1] == sum(len(d.answer) for d in made)


def test_dialogues_are_the_models_own_words(path, model):
    """Prompts follow the chat template and answers fill their budget; two runs write the same."""
    write_dialogues(model, path, 4, SETTINGS, lambda *_: None)
    texts = {opener["text"] for opener in openers()}
    for dialogue in read_dialogues(path):
        prompt = model.tokenizer.decode(dialogue.prompt)
        assert prompt.startswith("user: ")
        assert prompt.endswith("assistant: ")
        assert any(prompt.removeprefix("user: ").startswith(text) for text in texts)
        assert 8 <= len(dialogue.answer) <= 12
    first = path.read_text()
    path.unlink()
    write_dialogues(model, path, 4, SETTINGS, lambda *_: None)
    assert path.read_text() == first


def test_nothing_is_written_when_there_are_enough(path, model):
    path.write_text("".join(LINES))
    write_dialogues(model, path, 3, SETTINGS, lambda *_: None)
    assert path.read_text() == "".join(LINES)


@pytest.mark.slow
def test_the_answer_is_to_the_whole_user_turn(real_float32):
    """The chat prefix holds ends of turns of its own, which once cost every user turn its first token."""
    import random

    from recguide.drafter import dialogues
    from recguide.engine.engine import Engine

    engine = Engine(real_float32, "ar", max_concurrency=1, max_context=256)
    user = engine.prepare(dialogues._user_prefix(real_float32, "You are my friend."))
    answer = dialogues._start_answer(engine, user, DialogueSettings(answer_tokens=8), random.Random(0))
    assert "user\nYou are my friend." in real_float32.tokenizer.decode(answer.prompt)


PROMPTS = [Prompt(f"p{i}", "qa", ({"role": "user", "content": f"question {i}?"},)) for i in range(7)]


def test_given_prompts_are_answered_once_each(path, model):
    write_answers(model, path, PROMPTS, SETTINGS, lambda *_: None)
    asked = [model.tokenizer.decode(d.prompt) for d in read_dialogues(path)]
    assert sorted(asked) == [f"user: question {i}?\nassistant: " for i in range(7)]
    before = path.read_text()
    write_answers(model, path, PROMPTS, SETTINGS, lambda *_: pytest.fail("nothing is left to answer"))
    assert path.read_text() == before


def test_an_interrupted_run_of_answers_goes_on_with_the_rest(path, model):
    write_answers(model, path, PROMPTS, SETTINGS, lambda *_: None)
    whole = sorted(path.read_text().splitlines())
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:3]) + '{"prompt": [1')
    write_answers(model, path, PROMPTS, SETTINGS, lambda *_: None)
    assert sorted(path.read_text().splitlines()) == whole


def test_prompts_without_room_for_an_answer_are_left_out(path, model):
    long = Prompt("long", "rag", ({"role": "user", "content": "x" * 1020},))
    write_answers(model, path, [long, *PROMPTS[:2]], SETTINGS, lambda *_: None)
    assert len(read_dialogues(path)) == 2
