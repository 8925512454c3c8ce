"""Prompts from templates: well formed, of every kind, never twice, the same for the same seed."""

import json
import re

import pytest

from recguide.bench.prompts import load_prompts
from recguide.drafter import prompts as prompts_module
from recguide.drafter.prompts import WEIGHTS, Texts, main, make_prompts, read_texts
from recguide.errors import RecGuideError

NEWS = "The mayor of Springfield said on Monday that the bridge is safe. Engineers from Boston agreed. It opens soon.\n"
GERMAN = """Wer zuletzt lacht, lacht am besten, sagt man.
\t\t-- Sprichwort
%
Zu kurz
%
Ein zweiter Satz, der lang genug
ist.
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "news").write_text(NEWS * 3)
    (tmp_path / "german").write_text(GERMAN)
    return tmp_path / "news", tmp_path / "german"


@pytest.fixture
def texts(files):
    return read_texts(*files)


def test_texts_are_read_without_their_sources(texts):
    assert texts.german == ["Wer zuletzt lacht, lacht am besten, sagt man.", "Ein zweiter Satz, der lang genug ist."]
    assert [len(article) for article in texts.articles] == [3, 3, 3]


def test_no_slot_stays_empty_and_no_prompt_comes_twice(texts):
    prompts = make_prompts(400, texts, seed=3)
    assert len({p["prompt"] for p in prompts}) == 400
    assert not [p for p in prompts if re.search(r"[{}]", p["prompt"])]
    assert {p["category"] for p in prompts} == set(WEIGHTS)
    assert len({p["id"] for p in prompts}) == 400


def test_a_seed_says_it_all(texts):
    assert make_prompts(60, texts, seed=1) == make_prompts(60, texts, seed=1) != make_prompts(60, texts, seed=2)


def test_a_value_is_used_once_in_a_prompt(texts):
    relations = [p["prompt"] for p in make_prompts(600, texts) if "and how does it relate to" in p["prompt"]]
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


def test_more_prompts_than_there_are_is_told(monkeypatch):
    monkeypatch.setattr(prompts_module, "WEIGHTS", {"translation": 1})
    with pytest.raises(RecGuideError, match="only 1 different prompts; ask for fewer"):
        make_prompts(3, Texts([["One."]], ["Zwei."]))


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_text_is_named(files, tmp_path, content):
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(RecGuideError, match="bad: "):
        read_texts(bad, files[1])
    with pytest.raises(RecGuideError, match="bad: "):
        read_texts(files[0], bad)
