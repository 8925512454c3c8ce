"""Prompts from templates: well formed, of every kind, never twice, the same for the same seed."""

import json
import re
from dataclasses import replace

import pytest

from recguide.bench.prompts import load_prompts
from recguide.drafter import prompts as prompts_module
from recguide.drafter.prompts import QUESTION_SHARE, WEIGHTS, main, make_prompts
from recguide.drafter.texts import Texts
from recguide.errors import RecGuideError

TEXTS = Texts(
    articles=[["The mayor of Springfield said on Monday: the bridge is safe.", "Engineers from Boston agreed."]] * 3,
    german=["Wer zuletzt lacht, lacht am besten, sagt man.", "Ein zweiter Satz, der lang genug ist."],
    words={"noun": ["chair", "dog"], "someone": ["Albert Einstein"], "somewhere": ["Marrakesh", "New York"]},
)


def test_a_person_has_one_name_throughout_a_prompt():
    buyers = [p["prompt"] for p in make_prompts(600, TEXTS) if "pays with a $100 bill" in p["prompt"]]
    assert buyers
    for text in buyers:
        first, second = re.search(r"each\. (.*) buys .* change does (.*) get", text).groups()
        assert first == second


def test_no_slot_stays_empty_and_no_prompt_comes_twice():
    prompts = make_prompts(400, TEXTS, seed=3)
    assert len({p["prompt"] for p in prompts}) == 400
    assert not [p for p in prompts if re.search(r"[{}]", p["prompt"])]
    assert {p["category"] for p in prompts} == set(WEIGHTS)
    assert len({p["id"] for p in prompts}) == 400


def test_a_seed_says_it_all():
    assert make_prompts(60, TEXTS, seed=1) == make_prompts(60, TEXTS, seed=1) != make_prompts(60, TEXTS, seed=2)


def test_a_value_is_used_once_in_a_prompt():
    relations = [p["prompt"] for p in make_prompts(600, TEXTS) if "and how does it relate to" in p["prompt"]]
    assert relations
    for text in relations:
        first, second = re.fullmatch(r"What is (.*), and how does it relate to (.*)\?", text).groups()
        assert first != second


def test_the_file_is_one_that_other_commands_read(tmp_path, files):
    main(tmp_path / "prompts.jsonl", *files, count=30, seed=0)
    read = load_prompts(tmp_path / "prompts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert [p.category for p in read] == [row["category"] for row in rows]
    assert len(read) == 30


def test_questions_are_a_share_of_the_prompts_mixed_among_them():
    asked = [f"What is question {n}?" for n in range(90)]
    prompts = make_prompts(100, replace(TEXTS, questions=asked))
    places = [n for n, p in enumerate(prompts) if p["category"] == "question"]
    assert len(places) == QUESTION_SHARE * 100 and places != list(range(len(places)))
    assert {prompts[n]["prompt"] for n in places} < set(asked)
    few = make_prompts(100, replace(TEXTS, questions=asked[:5]))
    assert sum(p["category"] == "question" for p in few) == 5


def test_more_prompts_than_there_are_is_told(monkeypatch):
    monkeypatch.setattr(prompts_module, "WEIGHTS", {"translation": 1})
    with pytest.raises(RecGuideError, match="only 1 different prompts; ask for fewer"):
        make_prompts(3, Texts([["One."]], ["Zwei."], {}))
